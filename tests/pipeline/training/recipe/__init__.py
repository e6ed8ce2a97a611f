"""Tests of `pipeline.training.recipe`."""
