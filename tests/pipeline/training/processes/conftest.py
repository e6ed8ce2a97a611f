"""A cluster of two nodes for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.training.processes import ray_nodes
from tests.pipeline.training.processes.ray_nodes import Cluster

ON_TWO_NODES = pytest.mark.skipif(bool(ray_nodes.why_not()), reason=ray_nodes.why_not() or "-")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return two nodes, which share an object store, and all files but those of the cluster."""
    with ray_nodes.two_nodes(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(both: Cluster) -> Cluster:
    """Return the cluster with both nodes alive."""
    if not both.is_whole:
        both.restart()
    return both
