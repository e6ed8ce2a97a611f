"""Tests of `pipeline.data.symmetry`."""
