"""Tests of `pipeline.training.parts`."""
