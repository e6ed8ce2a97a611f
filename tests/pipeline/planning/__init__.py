"""Tests of the plans behind the presets."""
