"""Tests of `patchline.plugins.tools.monitor`."""
