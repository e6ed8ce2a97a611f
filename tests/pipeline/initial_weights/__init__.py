"""Tests of pipeline.models."""
