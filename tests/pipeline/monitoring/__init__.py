"""Tests of `patchline.pipeline.monitoring`."""
