"""Tests of patchline.pipeline.workspace.run_memory."""
