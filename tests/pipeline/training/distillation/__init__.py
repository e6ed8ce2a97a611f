"""Tests of patchline.pipeline.training.distillation."""
