"""Built-in augmentations."""
