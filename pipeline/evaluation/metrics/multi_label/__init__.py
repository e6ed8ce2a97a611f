"""Metrics of a classifier whose images have sets of labels, their intervals and their tests."""
