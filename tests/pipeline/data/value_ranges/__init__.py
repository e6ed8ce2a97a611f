"""Tests of `patchline.pipeline.data.value_ranges`."""
