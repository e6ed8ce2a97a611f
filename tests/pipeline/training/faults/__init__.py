"""Tests of `pipeline.training.faults`."""
