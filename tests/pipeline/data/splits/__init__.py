"""Tests of `pipeline.data.splits`."""
