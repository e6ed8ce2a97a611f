"""Tests of patchline.pipeline.workers.host."""
