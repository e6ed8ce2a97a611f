"""The training loop and the child process that it runs in."""
