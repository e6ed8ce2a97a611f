"""Tests of pipeline.workers."""
