"""Tests of pipeline.prediction."""
