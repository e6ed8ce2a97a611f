"""Tests of patchline.pipeline.distillation."""
