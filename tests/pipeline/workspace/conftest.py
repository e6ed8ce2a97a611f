"""What machines share."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import parse_address
from patchline.plugins.stores.objects import RemoteStore
from tests.object_server import FaultyConnection


@pytest.fixture
def team(tmp_path: Path) -> str:
    """Return the address of a folder that machines share, and work beside it."""
    (tmp_path / "team").mkdir()
    return (tmp_path / "team").as_uri()


@pytest.fixture
def top(bucket: str, connection: FaultyConnection, monkeypatch: pytest.MonkeyPatch) -> RemoteStore:
    """Return the store of a whole bucket; a listing is never used again."""
    assert connection.port
    monkeypatch.setattr(remote_data, "_SAME_LISTING_SECONDS", 0.0)
    return RemoteStore(parse_address(f"s3://{bucket}", "the bucket"), patience_seconds=3)
