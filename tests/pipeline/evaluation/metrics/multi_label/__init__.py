"""Tests of the metrics of label sets."""
