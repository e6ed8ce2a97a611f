"""Tests of `pipeline.data.store`."""
