"""Tests of pipeline.run_memory."""
