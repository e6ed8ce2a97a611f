"""Tests of `pipeline.data.value_ranges`."""
