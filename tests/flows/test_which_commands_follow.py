"""Which command lines rewrite a moved workspace, and what they do if it may not be written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patchline.pipeline.workspace.files import workspace_folder, workspace_identity
from patchline.plugins.stores import folder as folder_store
from tests.conftest import contents
from tests.made.servers import Command


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a command sets in its process."""
    monkeypatch.setattr(workspace_folder, "_scratch", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture
def moved(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a workspace that was moved, with a plugin file beside it."""
    folder = tmp_path / "old"
    (folder / ".patchline").mkdir(parents=True)
    identity = workspace_identity.new(folder / ".patchline")
    workspace_identity.write(folder / ".patchline", identity)
    shutil.copy(empty_store, folder / "mlflow.db")
    shutil.copy(folder_store.__file__, tmp_path / "plug.py")
    new = folder.rename(tmp_path / "new")
    monkeypatch.chdir(new)
    return new


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes the workspace one that may not be written."""
    return lambda: monkeypatch.setattr(workspace_folder, "is_read_only", lambda: True)


@pytest.mark.parametrize("words", ["", "-h", "--debug --version", "models --help"])
def test_help_and_version_leave_every_file_alone(
    words: str, moved: Path, run_here: Command, read_only: Callable[[], None]
) -> None:
    """They need no workspace, wherever it was moved, and whether it may be written or not."""
    before = contents(moved)
    code, _, err = run_here(words)
    assert (code, "was moved" in err) == (0, False), err
    read_only()
    code, _, err = run_here(words)
    assert (code, "is read-only" in err) == (0, False), err
    assert contents(moved) == before


@pytest.mark.parametrize("option", ["--plugin ../plug.py", "--plugin=../plug.py"])
def test_an_option_does_not_hide_the_command(
    option: str, moved: Path, run_here: Command, read_only: Callable[[], None]
) -> None:
    """`down` behind a plugin's file still is `down`, and what is refused is the command.

    `promote NAME --version 1` writes, though `--version` alone does not.
    """
    before = workspace_identity.read(moved / ".patchline")
    assert "was moved" not in run_here(option, "down")[2]
    assert workspace_identity.read(moved / ".patchline") == before
    read_only()
    assert "`patchline run` writes to it" in run_here(option, "run", "photos")[2]
    assert "writes to it" not in run_here(option, "models")[2]
    code, _, err = run_here("promote roses --version 1")
    assert (code, f"{moved} may not be written, and `patchline promote` writes" in err) == (1, True)


def test_a_moved_workspace_that_may_not_be_written_says_where_its_files_are(
    moved: Path, run_here: Command, read_only: Callable[[], None]
) -> None:
    """Its store names files in the old folder; what does not read the store works."""
    before = contents(moved)
    read_only()
    code, _, err = run_here("models")
    old = moved.with_name("old")
    assert (code, f"{moved} was last used in {old}, where its runs" in err) == (1, True), err
    assert run_here("plugins list")[0] == 0
    assert contents(moved) == before
