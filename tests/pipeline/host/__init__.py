"""Tests of pipeline.host."""
