"""Tests of patchline.pipeline.packaging."""
