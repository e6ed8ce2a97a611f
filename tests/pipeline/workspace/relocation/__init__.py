"""Tests of `patchline.pipeline.workspace.relocation`."""
