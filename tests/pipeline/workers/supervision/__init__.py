"""Tests of patchline.pipeline.workers.supervision."""
