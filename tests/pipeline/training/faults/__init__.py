"""Tests of `patchline.pipeline.training.faults`."""
