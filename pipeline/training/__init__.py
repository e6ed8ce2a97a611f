"""The training loop and the process that it runs in."""
