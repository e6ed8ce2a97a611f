"""Tests of `pipeline.training.speed`."""
