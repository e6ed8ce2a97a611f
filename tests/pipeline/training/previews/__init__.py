"""Tests of `patchline.pipeline.training.previews`."""
