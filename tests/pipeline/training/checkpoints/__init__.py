"""Tests of `pipeline.training.checkpoints`."""
