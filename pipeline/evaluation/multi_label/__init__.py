"""Evaluation of a model whose images have sets of labels."""
