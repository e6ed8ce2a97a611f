"""Tests of patchline.pipeline.plugin_system."""
