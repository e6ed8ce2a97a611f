"""What more labels would bring, from fits on nested shares of the training images."""
