"""Tests of patchline.pipeline.supervision."""
