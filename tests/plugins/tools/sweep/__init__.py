"""Tests of `patchline.plugins.tools.sweep`."""
