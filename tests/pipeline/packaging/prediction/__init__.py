"""Tests of patchline.pipeline.packaging.prediction."""
