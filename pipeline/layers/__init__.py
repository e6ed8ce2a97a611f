"""The parts of a Transformer, one concept a file."""
