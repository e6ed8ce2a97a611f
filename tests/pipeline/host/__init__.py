"""Tests of patchline.pipeline.host."""
