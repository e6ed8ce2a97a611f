"""Weight files of published Vision Transformers, converted to the names of our models."""
