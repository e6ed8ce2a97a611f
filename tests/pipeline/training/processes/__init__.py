"""Tests of `pipeline.training.processes`."""
