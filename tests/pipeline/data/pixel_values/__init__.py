"""Tests of `patchline.pipeline.data.pixel_values`."""
