"""The models that the tests of tools share with those of the library."""

from tests.pipeline.conftest import exported_rgb, exported_sets

__all__ = ["exported_rgb", "exported_sets"]
