"""Tests of pipeline.probing."""
