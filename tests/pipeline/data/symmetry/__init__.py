"""Tests of `patchline.pipeline.data.symmetry`."""
