"""Tests of patchline.pipeline.models.probing."""
