"""Tests of `patchline.pipeline.data.reading`."""
