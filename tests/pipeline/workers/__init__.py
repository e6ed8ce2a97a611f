"""Tests of patchline.pipeline.workers."""
