"""Tests of `patchline.plugins.tools.forecast`."""
