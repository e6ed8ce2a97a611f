"""Tests of `patchline.pipeline.workspace.files`."""
