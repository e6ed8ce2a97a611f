"""What a path holds is told by what is there, and is unknown where that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.config import source_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.data_kinds import (
    data_kind,
    find_kind,
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gone", "folder"), ("gone.zip", "archive"), ("gone.CSV", "table"), ("gone.json", "coco"),
        ("gone.tar.gz", "archive"), (".", "folder"), ("x" * 5000, "folder"), ("a\0b.json", "table"),
    ],
)  # fmt: skip
def test_what_is_not_there_has_the_kind_of_its_name(tmp_path: Path, name: str, kind: str) -> None:
    """Whoever reads it says that it is missing, or that nothing can have such a name."""
    assert find_kind(str(tmp_path / name)) == (kind, "")


@pytest.mark.parametrize("name", ["loop", "loop.json"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, name: str) -> None:
    """With the reason: it is not taken for a folder of images.

    A broken link in a folder does not hide what is beside it.
    """
    (tmp_path / name).symlink_to(name)
    kind, reason = find_kind(str(tmp_path / name))
    assert kind == "unknown"
    assert reason.endswith("Check the path and its permissions.")
    assert reason.isprintable()
    with pytest.raises(DataError, match="cannot be read"):
        source_of(str(tmp_path / name))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "metadata.csv").symlink_to("metadata.csv")
    (tmp_path / "inside" / "y.png").touch()
    assert data_kind(str(tmp_path / "inside")) == "folder"
