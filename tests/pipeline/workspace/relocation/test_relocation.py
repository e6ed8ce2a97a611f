"""Moved and copied workspaces: each follows its own folder, and touches no other."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import DESCRIPTION_FILE
from patchline.pipeline.training import extended_run
from patchline.pipeline.training.initial_weights import finding
from patchline.pipeline.workspace.files import workspace_identity
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.paths import sqlite_uri
from patchline.pipeline.workspace.files.workspace_folder import REQUEST_FILE
from patchline.pipeline.workspace.files.workspace_identity import LABEL, Identity
from patchline.pipeline.workspace.relocation import following, path_rewriting
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory
from patchline.pipeline.workspace.tracking import tracked_run, tracking_store
from patchline.pipeline.workspace.tracking.tracked_run import NewRun

NEW = NewRun(experiment="roses", name="one", command="patchline run", params={}, tags={})


class _Answer(FrozenModel):
    file: Path


Visit = Callable[[Path], str | None]


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> Visit:
    """Return a function that enters a folder as the next command does, and what it says."""

    def enter(folder: Path) -> str | None:
        monkeypatch.chdir(folder)
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return following.follow()

    return enter


def used_folder(folder: Path, empty_store: Path, patch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a store and a run, which has an artifact; return its workspace."""
    folder.mkdir()
    patch.chdir(folder)
    shutil.copy(empty_store, "mlflow.db")
    (folder / "note.txt").write_text("seen", "utf-8")
    with tracked_run.open_run(NEW, folder / ".patchline" / "runs") as run:
        tracked_run.log_file(run, folder / "note.txt")
        tracked_run.set_tags(run, {tracked_run.DATA_ROOT_TAG: str(folder / "images")})
    return folder / ".patchline"


@pytest.fixture
def original(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a workspace with a run, an artifact, a remembered result, and data of its own."""
    folder = tmp_path / "why? 100%25 #1"
    workspace = used_folder(folder, empty_store, monkeypatch)
    result = workspace / "runs" / "result"
    result.mkdir()
    (result / "best.txt").write_text("weights", "utf-8")
    memory = StageMemory(workspace)
    memory.remember("train", _Answer(file=result / "best.txt"), result, _inputs(folder))
    return folder


def _inputs(folder: Path) -> dict[str, str]:
    return {"seed": "0", "data.path": str(folder / "images")}


def _artifact(folder: Path) -> Path:
    [run] = tracking_store.all_runs("attributes.status = 'FINISHED'")
    assert run.data.tags[tracked_run.FOLDER_TAG].startswith(str(folder / ".patchline"))
    assert run.data.tags[tracked_run.DATA_ROOT_TAG] == str(folder / "images")
    store = tracking_store.client()
    return Path(store.download_artifacts(run.info.run_id, "note.txt"))


def _recalled(folder: Path) -> Path | None:
    found = StageMemory(folder / ".patchline").recall("train", _inputs(folder), _Answer)
    return found.file if found else None


def _identity(folder: Path) -> Identity:
    identity = workspace_identity.read(folder / ".patchline")
    assert identity
    return identity


@pytest.mark.parametrize("name", ["inside", "../ünï %41?"])
def test_a_copy_follows_its_own_folder(original: Path, name: str, visit: Visit) -> None:
    """Its runs use its own files, with an id of its own; not a byte of the original changes."""
    copy = Path(os.path.normpath(original / name))
    shutil.copytree(original, original.parent / "taken")
    shutil.move(original.parent / "taken", copy)
    before = _everything(original)
    assert f"is a copy of {original}. Its runs and models" in str(visit(copy))
    assert _artifact(copy).read_text("utf-8") == "seen"
    assert _recalled(copy) == copy / ".patchline/runs/result/best.txt"
    with tracked_run.open_run(NEW, copy / ".patchline" / "runs") as run:
        tracked_run.log_file(run, copy / "note.txt")
    assert len(list((copy / "mlruns").rglob("note.txt"))) == 2
    assert {k: v for k, v in _everything(original).items() if k in before} == before
    assert _identity(copy).copied_from == _identity(original).id != _identity(copy).id
    assert visit(copy) is None
    assert visit(original) is None
    (original.parent / "link").symlink_to(original)
    assert visit(original.parent / "link") is None


def test_the_schedules_of_a_copy_are_its_own(original: Path, visit: Visit) -> None:
    """Their labels name the copy's folder and id; so do those of a workspace that lost its id."""
    elsewhere = {"patchline.folder": "/elsewhere", LABEL: "another"}
    before = {"patchline.folder": str(original), LABEL: _identity(original).id, "other": "x"}
    with closing(sqlite3.connect(original / ".patchline" / "prefect.db")) as store, store:
        store.execute("CREATE TABLE deployment (labels JSON)")
        rows = [(json.dumps(each),) for each in (before, elsewhere)]
        store.executemany("INSERT INTO deployment VALUES (?)", rows)

    def labels(folder: Path) -> dict[str, str]:
        with closing(sqlite3.connect(folder / ".patchline" / "prefect.db")) as store:
            rows = store.execute("SELECT labels FROM deployment").fetchall()
        own, other = (json.loads(row[0]) for row in rows)
        assert other == elsewhere
        return dict(own)

    copy = original.parent / "second"
    shutil.copytree(original, copy)
    visit(copy)
    assert labels(copy) == {**before, "patchline.folder": str(copy), LABEL: _identity(copy).id}
    assert labels(original) == before
    (original / ".patchline" / workspace_identity.FILE).unlink()
    visit(original)
    assert labels(original) == {**before, LABEL: _identity(original).id} != before


def _everything(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files if "inside" not in file.parts}


def test_a_moved_workspace_follows_its_folder(original: Path, visit: Visit) -> None:
    """Files are found again, results are used again, and the id stays; moved back works too."""
    record = _identity(original)
    moved = original.rename(original.parent / "why? 100%25 #2 ünï;@:\"'")
    said = str(visit(moved))
    assert said.startswith(f"This workspace was moved from {original}. Its runs and models now use")
    assert _artifact(moved).read_text("utf-8") == "seen"
    assert _recalled(moved) == moved / ".patchline/runs/result/best.txt"
    after = _identity(moved)
    assert (after.id, after.earlier) == (record.id, (str(original),))
    assert visit(moved) is None
    assert visit(moved.rename(original))
    assert _artifact(original).read_text("utf-8") == "seen"


def test_a_backup_restored_to_the_same_place_is_the_same_workspace(
    original: Path, visit: Visit
) -> None:
    """Another inode at the same path needs no word and no rewriting."""
    record = _identity(original)
    shutil.copytree(original, original.parent / "backup")
    shutil.rmtree(original)
    shutil.copytree(original.parent / "backup", original)
    assert visit(original) is None
    assert _identity(original).id == record.id
    assert _artifact(original).read_text("utf-8") == "seen"


def test_a_store_whose_artifacts_are_kept_elsewhere_stays_as_it_is(
    empty_store: Path, tmp_path: Path, visit: Visit
) -> None:
    """A database that another folder uses on purpose is not the workspace's to rewrite."""
    (tmp_path / "team").mkdir()
    (tmp_path / "artifacts").mkdir()
    shutil.copy(empty_store, tmp_path / "team" / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "team" / "mlflow.db")) as store, store:
        place = str(tmp_path / "artifacts" / "mlruns" / "0")
        store.execute("UPDATE experiments SET artifact_location = ?", (place,))
    assert visit(tmp_path / "team") is None
    with closing(sqlite3.connect(tmp_path / "team" / "mlflow.db")) as store:
        assert store.execute("SELECT artifact_location FROM experiments").fetchone() == (place,)


def test_a_workspace_that_is_moved_under_a_run_is_refused(original: Path, visit: Visit) -> None:
    """What still writes to the old path is named, here or in a container; nothing is rewritten."""
    [lock] = (original / ".patchline" / "runs").glob("*/owner.lock")
    before, moved = (original / "mlflow.db").read_bytes(), original.parent / "second"
    with hold_lock(lock):
        original.rename(moved)
        with pytest.raises(OrchestrationError, match=r"while the run in .* still uses it"):
            visit(moved)
        assert (moved / "mlflow.db").read_bytes() == before
        moved.rename(original)
    with live_runs.alive(original / ".patchline", "run-1", "training") as record:
        record.model_copy(update={"place": "the-container 1"}).at(record._lock_file).write()
        original.rename(moved)
        with pytest.raises(OrchestrationError, match=r"while process .* still uses it"):
            visit(moved)
        moved.rename(original)
    assert visit(original.rename(moved))


def test_runs_of_a_store_that_is_not_rewritten_are_found_after_a_move(
    original: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of a server names the earlier folder: to extend, and to start from runs."""
    uri = f"sqlite:///{original.parent / 'server.db'}"
    shutil.copy(original / "mlflow.db", original.parent / "server.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with tracked_run.open_run(NEW, original / ".patchline" / "runs") as parent:
        for name in (REQUEST_FILE, f"package/{DESCRIPTION_FILE}"):
            write_text(parent.folder / name, "{}")
    second = original.rename(original.parent / "second")
    assert visit(second)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    runs = second / ".patchline" / "runs"
    here = runs / parent.folder.name
    assert extended_run._find_finished_run(parent.run_id, runs) == (parent.run_id, here)
    assert (
        finding._find_trained_by_run(parent.run_id, runs, "model.init").folder == here / "package"
    )


def test_only_paths_inside_the_old_folder_are_rewritten() -> None:
    """A folder whose name begins with the old one's, text, and other addresses stay."""
    rewrite = path_rewriting.between(Path("/data/ws"), Path("/new place?"))
    assert rewrite("/data/ws") == "/new place?"
    assert rewrite("/data/ws/a%20b") == "/new place?/a%20b"
    assert (
        path_rewriting.location(rewrite)("/data/ws/mlruns/0") == "file:///new%20place%3F/mlruns/0"
    )
    assert rewrite("file:///data/ws/m%3F") == "file:///new%20place%3F/m%3F"
    assert rewrite("sqlite:////data/ws/mlflow.db") == sqlite_uri(Path("/new place?/mlflow.db"))
    for other in ("/data/ws2/x", "/data", "see /data/ws/x", "s3://data/ws", "models:/m-1", ""):
        assert rewrite(other) == other
