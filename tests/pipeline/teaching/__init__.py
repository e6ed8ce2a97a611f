"""Tests of patchline.pipeline.teaching."""
