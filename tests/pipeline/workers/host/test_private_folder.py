"""A folder under a predictable name, where other users may have been first."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from patchline.pipeline.errors import StorageError
from patchline.pipeline.registry import aliases
from patchline.pipeline.workers.host.private_folder import private_folder


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the folder belongs, below a temporary directory of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"patchline-{os.getuid()}"


def test_it_is_created_for_this_user_alone(expected: Path) -> None:
    """Whatever the umask is; one that others can read is closed, for it is ours."""
    before = os.umask(0)
    try:
        assert private_folder() == expected
        assert stat.S_IMODE(expected.stat().st_mode) == 0o700
        expected.chmod(0o755)
        assert private_folder() == expected
    finally:
        os.umask(before)
    assert stat.S_IMODE(expected.stat().st_mode) == 0o700


def _foreign_folder(place: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    place.mkdir(0o700)
    os.chown(place, 65534, 65534)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda place: place.symlink_to(place.parent), "is a link"),
        (lambda place: place.symlink_to(place.parent / "nowhere"), "is a link"),
        (Path.touch, "is not a folder"),
        (lambda place: (place.mkdir(), place.chmod(0o777)), "may be written by other users"),
        (_foreign_folder, "belongs to another user"),
    ],
)
def test_what_others_have_prepared_is_refused(
    prepare: Callable[[Path], object], words: str, expected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written there; the sentence says why and what to do."""
    prepare(expected)
    before = set(expected.parent.rglob("*"))
    monkeypatch.setattr(aliases, "_folder_of_store", lambda: None)  # as for a server elsewhere
    with (
        pytest.raises(StorageError, match=rf"{words}.*Remove it, or set TMPDIR"),
        aliases.machine_lock("flowers"),
    ):
        pass
    assert set(expected.parent.rglob("*")) == before
