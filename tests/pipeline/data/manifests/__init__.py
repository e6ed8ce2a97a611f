"""Tests of `pipeline.data.manifests`."""
