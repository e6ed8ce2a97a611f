"""Tests of patchline.flows.sweeping."""
