"""What a plugin has to do, as checks that run."""
