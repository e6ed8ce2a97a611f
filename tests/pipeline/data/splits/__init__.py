"""Tests of `patchline.pipeline.data.splits`."""
