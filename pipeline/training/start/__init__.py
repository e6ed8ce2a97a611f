"""Where training starts: at an initial model, or at the end of a finished training run."""
