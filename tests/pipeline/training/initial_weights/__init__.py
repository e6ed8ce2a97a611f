"""Tests of patchline.pipeline.models."""
