"""Tests of patchline.pipeline.models.pretrained."""
