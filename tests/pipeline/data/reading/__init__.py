"""Tests of `pipeline.data.reading`."""
