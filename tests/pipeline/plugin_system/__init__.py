"""Tests of pipeline.plugin_system."""
