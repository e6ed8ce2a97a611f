"""The registry that these tests share with those of the server."""

from tests.pipeline.registry.serving.conftest import registry

__all__ = ["registry"]
