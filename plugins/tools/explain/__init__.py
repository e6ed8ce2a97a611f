"""How a trained model sees an image, step by step: the command."""
