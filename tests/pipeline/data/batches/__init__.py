"""Tests of `pipeline.data.batches`."""
