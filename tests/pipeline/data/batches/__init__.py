"""Tests of `patchline.pipeline.data.batches`."""
