"""Tests of `pipeline.training.length`."""
