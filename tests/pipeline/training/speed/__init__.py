"""Tests of `patchline.pipeline.training.speed`."""
