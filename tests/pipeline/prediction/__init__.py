"""Tests of patchline.pipeline.prediction."""
