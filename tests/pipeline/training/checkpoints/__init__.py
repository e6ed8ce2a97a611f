"""Tests of `patchline.pipeline.training.checkpoints`."""
