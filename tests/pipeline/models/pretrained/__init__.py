"""Tests of pipeline.models.pretrained."""
