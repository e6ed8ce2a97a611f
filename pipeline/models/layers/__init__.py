"""The layers of a Vision Transformer, one concept per file."""
