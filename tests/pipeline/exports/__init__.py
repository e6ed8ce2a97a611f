"""Tests of `patchline.pipeline.exports`."""
