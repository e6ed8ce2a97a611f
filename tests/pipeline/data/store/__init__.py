"""Tests of `patchline.pipeline.data.store`."""
