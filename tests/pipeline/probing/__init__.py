"""Tests of patchline.pipeline.probing."""
