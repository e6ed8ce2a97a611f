"""Tests of patchline.pipeline.sweeping."""
