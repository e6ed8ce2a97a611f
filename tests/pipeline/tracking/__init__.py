"""Tests of patchline.pipeline.tracking."""
