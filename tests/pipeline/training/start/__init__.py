"""Tests of `pipeline.training.start`."""
