"""`clean` finds what no version, resumed run or repeated run needs, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace import chosen, run_folders
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.workspace_folder import FEATURES_FILE, REQUEST_FILE
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.run_memory.cleaning import (
    Cleaning,
    find_removable,
    remove,
    remove_leftovers,
)
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory
from patchline.pipeline.workspace.tracking.tracked_run import FOLDER_TAG
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.pipeline.workspace.machines import machine

CHECKPOINT, BEST = "training/last.safetensors", "training/best/model.safetensors"


class Trained(FrozenModel):
    """The result of a stage."""

    best: Path


def add_run(
    workspace: Path,
    name: str,
    status: str | None,
    *,
    model: str = "m",
    images: str = "a",
    command: str = "patchline run",
    **training: Any,
) -> Path:
    """Make a run with small files and return its folder; the store knows it if it has a status."""
    folder = workspace / "runs" / name
    stores = [str(workspace / "prepared" / each) for each in (images, f"{images}-more")]
    taught = str(workspace / "teacher_predictions" / f"of-{images}")
    jsons: dict[str, dict[str, Any]] = {
        "training/job.json": {"store": stores[0], "unlabelled": {"store": stores[1]}},
        f"training/{FEATURES_FILE}": {"folders": [f"of-{images}"]},
        "stages/teach.json": {"folder": taught},
        REQUEST_FILE: {"config": {"name": model, "training": training}},
    }
    files = {folder / path: json.dumps(each).encode() for path, each in jsons.items()}
    files |= {folder / CHECKPOINT: b"c" * 1000, folder / BEST: b"b" * 100}
    for kept in (*stores, str(workspace / "features" / f"of-{images}"), taught):
        files[Path(kept) / "images.npy"] = b"i"
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if status:
        run = client().create_run(
            "0", tags={"mlflow.source.name": command, FOLDER_TAG: str(folder)}
        )
        if status != "RUNNING":
            client().set_terminated(run.info.run_id, status)
        (folder / "id").write_text(run.info.run_id)
    return folder


@pytest.fixture
def workspace(own_store: None, tmp_path: Path) -> Path:
    """Return an empty workspace."""
    del own_store
    (tmp_path / ".patchline").mkdir()
    return (tmp_path / ".patchline").resolve()


def names(workspace: Path) -> set[str]:
    """Return what may go, relative to the workspace."""
    found = find_removable(workspace).removable
    return {Path(each.path).as_posix().partition(".patchline/")[2] for each in found}


def test_an_empty_folder_has_nothing_to_clean(tmp_path: Path) -> None:
    """There is neither a workspace nor a store, and none is made."""
    assert find_removable(tmp_path / "nothing") == Cleaning(removable=())
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_finished_runs_go_and_their_weights_stay(workspace: Path) -> None:
    """The size is that of the files, a shared one counts once; nothing is removed by looking.

    A repeated run still takes the weights, for the record of the training is trusted as before.
    """
    folder, second = add_run(workspace, "1", "FINISHED"), add_run(workspace, "2", "FINISHED")
    (second / CHECKPOINT).unlink()
    os.link(folder / CHECKPOINT, second / CHECKPOINT)
    memory = StageMemory(workspace)
    memory.enter("run", folder)
    trained = Trained(best=folder / "training/best")
    memory.remember("train", trained, folder / "training", {"data": "1"})
    cleaning = find_removable(workspace)
    assert names(workspace) == {f"runs/1/{CHECKPOINT}", f"runs/2/{CHECKPOINT}"}
    assert (cleaning.files, cleaning.bytes) == (2, 1000)
    assert (folder / CHECKPOINT).exists()
    assert len(remove(workspace, cleaning)) == 2
    assert not (folder / CHECKPOINT).exists()
    assert names(workspace) == set()
    notes: list[str] = []
    other = StageMemory(workspace, on_note=notes.append)
    other.enter("another", workspace / "runs/3")
    known = other.recall("train", {"data": "1"}, Trained, workspace / "runs/3/training")
    assert known is not None, notes
    assert (known.best / "model.safetensors").read_bytes() == b"b" * 100
    assert not notes


@pytest.mark.parametrize(("status", "goes"), [("FINISHED", True), ("KILLED", False)])
def test_checkpoints_in_the_run_of_a_tool_go_once_it_is_finished(
    workspace: Path, status: str, *, goes: bool
) -> None:
    """Those of one that may be resumed stay."""
    trial = add_run(workspace, "1", status, command="patchline other") / "trials/1" / CHECKPOINT
    trial.parent.mkdir(parents=True)
    trial.write_bytes(b"c" * 1000)
    assert ("runs/1/trials/1/training/last.safetensors" in names(workspace)) is goes


@pytest.mark.parametrize("status", ["FAILED", "RUNNING", None])
def test_a_run_that_is_not_known_to_be_finished_keeps_everything(
    workspace: Path, status: str | None
) -> None:
    """It may be resumed, be active, or belong to a store that is not looked at."""
    add_run(workspace, "1", status)
    cleaning = find_removable(workspace)
    assert cleaning.removable == ()
    kept = (cleaning.resumable_runs, cleaning.unknown_runs)
    assert kept == ((0, 1) if status is None else (1, 0))


def test_images_and_features_go_when_only_old_finished_runs_have_used_them(
    workspace: Path,
) -> None:
    """A model's latest run keeps its own, for the next run; so does a run that can be resumed.

    All stay while a flow run is active, which may be about to open them, and one that is being
    repaired stays.
    """
    add_run(workspace, "1", "FINISHED", images="a")
    add_run(workspace, "2", "FINISHED", images="b")
    add_run(workspace, "3", "KILLED", images="c")
    add_run(workspace, "4", "FINISHED", images="d", model="other")
    cleaning = find_removable(workspace)
    assert {each for each in names(workspace) if not each.startswith("runs")} == {
        *("prepared/a", "prepared/a-more", "features/of-a", "teacher_predictions/of-a"),
    }
    with file_locks.hold_lock(workspace / "prepared/.locks/a"):
        assert len(remove(workspace, cleaning)) == len(cleaning.removable) - 1
    assert (workspace / "prepared/a/images.npy").exists()
    with live_runs.alive(workspace, "run-1", "training"):
        assert find_removable(workspace).active_runs == 1
        assert names(workspace) == set()


def test_the_checkpoint_of_a_run_that_another_one_extends_stays(workspace: Path) -> None:
    """Until that one is finished, too."""
    run_id = (add_run(workspace, "1", "FINISHED") / "id").read_text()
    second = add_run(workspace, "2", "KILLED", extends=run_id)
    assert names(workspace) == set()
    client().set_terminated((second / "id").read_text(), "FINISHED")
    assert names(workspace) == {f"runs/1/{CHECKPOINT}", f"runs/2/{CHECKPOINT}"}


def test_checkpoints_stay_that_a_run_on_another_machine_extends(
    own_store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is not here, but its request is on the store."""
    del own_store
    monkeypatch.delenv(chosen.VARIABLE, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "team").mkdir()
    uri = (tmp_path / "team").as_uri()
    with machine("a", uri) as folder:
        shared, finished = chosen.find_shared_files(), add_run(folder, "1", "FINISHED")
        assert shared is not None
        name = Path(CHECKPOINT).name
        shared.publish("runs/1/training/checkpoint", finished / "training", [name])
        kinds = [each.kind for each in find_removable(folder).removable]
        assert kinds == ["checkpoint", "object"]
    with machine("b", uri) as other:
        request = {"config": {"record": {"extends": (finished / "id").read_text()}}}
        (other / "runs/2").mkdir(parents=True)
        (other / "runs/2" / REQUEST_FILE).write_text(json.dumps(request))
        run_folders.send_file(other / "runs/2" / REQUEST_FILE)
    with machine("a", uri):
        assert find_removable(folder).removable == ()


def test_old_unfinished_files_go(tmp_path: Path) -> None:
    """Folders being built, parts of files and stray locks go after a day, unless a run is alive.

    One new file in a folder that is being built keeps the folder.
    """
    building, part = tmp_path / "stores/.building-abc", tmp_path / "runs/.report.html.1234abcd.part"
    whole, lock = tmp_path / "runs/report.html", tmp_path / "live/gone.lock"
    young = tmp_path / "stores/.building-def"
    inside = [building / "images.bin", young / "images.bin"]
    for file in (*inside, part, whole, lock):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half", "utf-8")
    then = time.time() - 2 * 24 * 3600
    for path in (*inside, building, young, part, whole, lock):
        os.utime(path, (then, then))
    (young / "labels.bin").write_bytes(b"new")
    os.utime(young, (then, then))
    with live_runs.alive(tmp_path, "run-1", "training"):
        # a machine that slept makes everything look old
        assert remove_leftovers(tmp_path) == []
    assert set(remove_leftovers(tmp_path)) == {building, part, lock}
    assert not building.exists()
    assert whole.exists()
    assert remove_leftovers(tmp_path) == []
