"""Tests of patchline.pipeline.workspace.tracking."""
