"""Tests of `patchline.pipeline.training.parts`."""
