"""A frozen model in a file: whole, or none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from patchline.pipeline.frozen_model import FrozenModel


class Loaf(FrozenModel):
    """Some bread."""

    flour: str
    slices: tuple[int, ...] = ()


def test_a_model_is_kept_in_a_file(tmp_path: Path) -> None:
    """Its folder is created, and what another version has written without spaces is read."""
    loaf, file = Loaf(flour="Weizen ü", slices=(1, 2)), tmp_path / "oven" / "loaf.json"
    loaf.to_file(file)
    assert Loaf.from_file(file) == loaf
    assert file.read_text("utf-8") == loaf.model_dump_json(indent=2) + "\n"
    loaf.to_file(file, indent=None, is_private=True)
    assert file.read_text("utf-8") == loaf.model_dump_json() + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Loaf.from_file_or_none(file) == loaf
    assert [each.name for each in file.parent.iterdir()] == ["loaf.json"]


@pytest.mark.parametrize("content", [b"", b'{"flour"', b'{"flour": "\xff"}', b'{"flour": 1}'])
def test_a_file_that_is_no_model_is_none(tmp_path: Path, content: bytes) -> None:
    """As is one that is missing or cannot be read."""
    file = tmp_path / "loaf.json"
    assert Loaf.from_file_or_none(file) is None
    assert Loaf.from_file_or_none(tmp_path) is None
    with pytest.raises(FileNotFoundError):
        Loaf.from_file(file)
    file.write_bytes(content)
    assert Loaf.from_file_or_none(file) is None
    with pytest.raises(ValidationError):
        Loaf.from_file(file)
