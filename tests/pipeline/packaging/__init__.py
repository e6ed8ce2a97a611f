"""Tests of pipeline.packaging."""
