"""Tests of `patchline.pipeline.training.processes`."""
