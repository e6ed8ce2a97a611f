"""What machines share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def team(tmp_path: Path) -> str:
    """Return the address of a folder that machines share, and work beside it."""
    (tmp_path / "team").mkdir()
    return (tmp_path / "team").as_uri()
