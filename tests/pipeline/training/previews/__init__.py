"""Tests of `pipeline.training.previews`."""
