"""Tests of `patchline.plugins.tools.export`."""
