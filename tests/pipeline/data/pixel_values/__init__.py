"""Tests of `pipeline.data.pixel_values`."""
