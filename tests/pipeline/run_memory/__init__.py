"""Tests of patchline.pipeline.run_memory."""
