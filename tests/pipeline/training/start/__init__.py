"""Tests of `patchline.pipeline.training.start`."""
