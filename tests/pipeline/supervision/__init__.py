"""Tests of pipeline.supervision."""
