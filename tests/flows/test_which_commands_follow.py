"""Which command lines rewrite a moved workspace, and what they do if it may not be written."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from patchline.pipeline.files import workspace_folder, workspace_identity
from tests.flows.conftest import Command

ASKING: tuple[list[str], ...] = (
    [],
    ["--help"],
    ["-h"],
    ["--version"],
    ["models", "--help"],
    ["run", "photos", "-h"],
    ["--debug", "--version"],
)


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
    (tmp_path / "plug.py").write_text("VALUE = 1\n", encoding="utf-8")
    new = folder.rename(tmp_path / "new")
    monkeypatch.chdir(new)
    return new


def _everything(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_help_and_version_leave_every_file_alone(
    words: list[str], moved: Path, run_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no workspace, wherever it was moved, and whether it may be written or not."""
    before = _everything(moved)
    code, _, err = run_here(*words)
    assert (code, "was moved" in err) == (0, False), err
    monkeypatch.setattr(workspace_folder, "is_read_only", lambda: True)
    code, _, err = run_here(*words)
    assert (code, "is read-only" in err) == (0, False), err
    assert _everything(moved) == before


def test_the_version_of_a_model_is_no_question(
    moved: Path, run_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`promote NAME --version 1` writes, though `--version` alone does not."""
    monkeypatch.setattr(workspace_folder, "is_read_only", lambda: True)
    code, _, err = run_here("promote", "roses", "--version", "1")
    assert (code, f"{moved} may not be written, and `patchline promote` writes" in err) == (1, True)


@pytest.mark.parametrize("option", [["--plugin", "../plug.py"], ["--plugin=../plug.py"]])
def test_a_plugin_file_in_front_of_the_command_is_not_the_command(
    option: list[str], moved: Path, run_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`down` still is `down`, and what is refused is the command."""
    before = workspace_identity.read(moved / ".patchline")
    _, _, err = run_here(*option, "down")
    assert "was moved" not in err
    assert workspace_identity.read(moved / ".patchline") == before
    monkeypatch.setattr(workspace_folder, "is_read_only", lambda: True)
    _, _, err = run_here(*option, "run", "photos")
    assert "`patchline run` writes to it" in err
    _, _, err = run_here(*option, "models")
    assert "writes to it" not in err


def test_a_moved_workspace_that_may_not_be_written_says_where_its_files_are(
    moved: Path, run_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store names files in the old folder; what does not read the store works."""
    before = _everything(moved)
    monkeypatch.setattr(workspace_folder, "is_read_only", lambda: True)
    code, _, err = run_here("models")
    old = moved.with_name("old")
    assert (code, f"{moved} was last used in {old}, where its runs" in err) == (1, True), err
    assert run_here("plugins", "list")[0] == 0
    assert _everything(moved) == before


@pytest.mark.parametrize("beside", ["nothing", "an empty folder", "a workspace"])
def test_a_store_that_patchline_never_used_is_not_rewritten(
    beside: str,
    empty_store: Path,
    tmp_path: Path,
    run_here: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server in a container names folders that exist, but that cannot be seen from here."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    (tmp_path / "mlruns").mkdir()
    if beside != "nothing":
        (tmp_path / ".patchline").mkdir()
    if beside == "a workspace":
        identity = workspace_identity.new(tmp_path / ".patchline")
        workspace_identity.write(tmp_path / ".patchline", identity)
    query = "SELECT artifact_location FROM experiments"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store, store:
        store.execute("UPDATE experiments SET artifact_location = '/mlflow/mlruns/0'")
    monkeypatch.chdir(tmp_path)
    code, _, err = run_here("models")
    assert (code, "was moved" in err) == (0, False), err
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        assert store.execute(query).fetchall() == [("/mlflow/mlruns/0",)]
    assert os.fspath(tmp_path) not in str(_everything(tmp_path / "mlruns"))
