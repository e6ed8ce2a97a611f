"""Tests of `patchline.pipeline.data.manifests`."""
