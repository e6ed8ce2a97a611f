"""What goes wrong during training: divergence, too little memory, data-loader workers that die."""
