"""The folder `.patchline` is for its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchline.flows.command_line import run_command_line
from patchline.flows.prefect_api import prefect_database
from patchline.pipeline.workspace.files import atomic_files, workspace_folder


def mode(place: Path) -> int:
    """Return the mode of a file or folder."""
    return stat.S_IMODE(place.stat().st_mode)


@pytest.fixture(params=[0o000, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set a umask for the test: one that forbids nothing, one that forbids much."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_new_workspace_is_private(umask: None, tmp_path: Path) -> None:
    """Whatever makes the first file in it, and whatever the umask says."""
    del umask
    atomic_files.write_text(tmp_path / ".patchline/a.json", "{}")
    assert mode(tmp_path / ".patchline") == 0o700
    atomic_files.write_private_text(tmp_path / ".patchline/b.json", "{}")
    assert mode(tmp_path / ".patchline/b.json") == 0o600


def test_the_next_command_narrows_a_workspace_that_is_there(tmp_path: Path) -> None:
    """Somebody has made it wider."""
    (tmp_path / ".patchline").mkdir()
    (tmp_path / ".patchline").chmod(0o755)
    assert run_command_line(["plugins", "list"]) == 0
    assert mode(tmp_path / ".patchline") == 0o700


def test_a_place_that_cannot_be_narrowed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a file system without modes, or in another's folder, work continues with a warning."""

    def refuse(*_: object) -> None:
        raise PermissionError

    (tmp_path / ".patchline").mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    workspace_folder.make_folder(tmp_path / ".patchline/runs")
    workspace_folder.make_folder(tmp_path / ".patchline/runs")
    assert (tmp_path / ".patchline/runs").is_dir()
    assert caplog.text.count("its mode is 0755") == 1


def test_the_key_to_a_new_database_is_kept_apart(tmp_path: Path) -> None:
    """Database and key are the owner's alone; another process gets the same key."""
    database = tmp_path / ".patchline/prefect.db"
    given = prefect_database.key_environment(database)
    assert given == {"PREFECT_SERVER_ENCRYPTION_KEY": database.with_suffix(".key").read_text()}
    assert prefect_database.key_environment(database) == given
    assert mode(database) == mode(database.with_suffix(".key")) == 0o600
    assert mode(database.parent) == 0o700


def test_a_database_that_is_there_is_narrowed_and_keeps_its_own_key(tmp_path: Path) -> None:
    """What was encrypted before could not be read with a new key."""
    database = tmp_path / ".patchline/prefect.db"
    database.parent.mkdir()
    for name in ("prefect.db", "prefect.db-wal"):
        (database.parent / name).write_bytes(b"not empty")
        (database.parent / name).chmod(0o644)
    assert prefect_database.key_environment(database) == {}
    assert mode(database) == mode(database.with_name("prefect.db-wal")) == 0o600
    assert not database.with_suffix(".key").exists()
