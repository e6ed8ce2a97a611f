"""Tests of `patchline.pipeline.training.recipe`."""
