"""Tests of `patchline.pipeline.training.length`."""
