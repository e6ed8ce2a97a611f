"""Tests of `pipeline.workspace`."""
