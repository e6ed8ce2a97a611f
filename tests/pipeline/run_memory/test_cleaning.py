"""`clean` finds what no version, resumed run or repeated run needs, and nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from patchline.pipeline.files import file_locks
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.run_memory import live_runs
from patchline.pipeline.run_memory.cleaning import FEATURES_FILE, Cleaning, find_removable, remove
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.tracking.tracked_run import FOLDER_TAG, REQUEST_FILE
from patchline.pipeline.tracking.tracking_store import client
from patchline.pipeline.workspace import chosen, run_folders
from tests.pipeline.workspace.machines import machine

CHECKPOINT, BEST = "training/last.safetensors", "training/best/model.safetensors"


class Trained(FrozenModel):
    """The result of a stage."""

    best: Path


@dataclass
class Workspace:
    """A workspace with runs in a real store, whose files are made small."""

    folder: Path
    store: MlflowClient

    def run(
        self,
        name: str,
        status: str | None,
        *,
        model: str = "m",
        images: str = "a",
        command: str = "patchline run",
        **training: Any,
    ) -> Path:
        """Make a run; without a status, the store does not know it."""
        folder = self.folder / "runs" / name
        stores = {each: str(self.folder / "prepared" / each) for each in (images, f"{images}-more")}
        job = {"store": stores[images], "unlabelled": {"store": stores[f"{images}-more"]}}
        taught = {"folder": str(self.folder / "teacher_predictions" / f"of-{images}")}
        files = {
            CHECKPOINT: b"c" * 1000,
            BEST: b"b" * 100,
            "training/job.json": json.dumps(job).encode(),
            f"training/{FEATURES_FILE}": json.dumps({"folders": [f"of-{images}"]}).encode(),
            "stages/teach.json": json.dumps(taught).encode(),
            REQUEST_FILE: json.dumps({"config": {"name": model, "training": training}}).encode(),
        }
        for path in (
            *(f"prepared/{each}/images.npy" for each in stores),
            f"features/of-{images}/0.npy",
            f"teacher_predictions/of-{images}/logits.npy",
        ):
            files[f"../../{path}"] = b"i" * 500
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        if status:
            tags = {"mlflow.source.name": command, FOLDER_TAG: str(folder)}
            run = self.store.create_run("0", tags=tags)
            if status != "RUNNING":
                self.store.set_terminated(run.info.run_id, status)
            (folder / "id").write_text(run.info.run_id)
        return folder

    def look(self) -> Cleaning:
        """Look what may go."""
        return find_removable(self.folder)


@pytest.fixture
def workspace(own_store: None, tmp_path: Path) -> Workspace:
    """Return an empty workspace."""
    del own_store
    folder = tmp_path / ".patchline"
    folder.mkdir()
    return Workspace(folder.resolve(), client())


def names(cleaning: Cleaning) -> set[str]:
    """Return what may go, relative to the workspace."""
    return {Path(each.path).as_posix().partition(".patchline/")[2] for each in cleaning.removable}


def test_an_empty_folder_has_nothing_to_clean(tmp_path: Path) -> None:
    """There is neither a workspace nor a store, and none is made."""
    assert find_removable(tmp_path / "nothing") == Cleaning(removable=())
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_finished_runs_go_and_their_weights_stay(workspace: Workspace) -> None:
    """The size is that of the files; nothing is removed by looking."""
    folder = workspace.run("1", "FINISHED")
    cleaning = workspace.look()
    assert names(cleaning) == {f"runs/1/{CHECKPOINT}"}
    assert (cleaning.files, cleaning.bytes) == (1, 1000)
    assert (folder / CHECKPOINT).exists()
    assert [each.path for each in remove(workspace.folder, cleaning)] == [folder / CHECKPOINT]
    assert not (folder / CHECKPOINT).exists()
    assert (folder / BEST).exists()
    assert workspace.look().removable == ()


@pytest.mark.parametrize(("status", "goes"), [("FINISHED", True), ("KILLED", False)])
def test_checkpoints_of_the_trials_of_a_search_go_once_it_is_finished(
    workspace: Workspace, status: str, goes: bool
) -> None:
    """Those of a search that may be resumed stay."""
    folder = workspace.run("1", status, command="patchline sweep")
    trial = folder / "trials/1" / CHECKPOINT
    trial.parent.mkdir(parents=True)
    trial.write_bytes(b"c" * 1000)
    cleaning = workspace.look()
    assert ("runs/1/trials/1/training/last.safetensors" in names(cleaning)) is goes
    assert cleaning.unknown_runs == 0
    assert cleaning.resumable_runs == (0 if goes else 1)


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "RUNNING", None])
def test_a_run_that_is_not_known_to_be_finished_keeps_everything(
    workspace: Workspace, status: str | None
) -> None:
    """It may be resumed, be active, or belong to a store that is not looked at."""
    workspace.run("1", status)
    cleaning = workspace.look()
    assert cleaning.removable == ()
    kept = (cleaning.resumable_runs, cleaning.unknown_runs)
    assert kept == ((0, 1) if status is None else (1, 0))


def test_images_and_features_go_when_only_old_finished_runs_have_used_them(
    workspace: Workspace,
) -> None:
    """A model's latest run keeps its own, for the next run; so does a run that can be resumed."""
    workspace.run("1", "FINISHED", images="a")
    workspace.run("2", "FINISHED", images="b")
    workspace.run("3", "KILLED", images="c")
    workspace.run("4", "FINISHED", images="d", model="other")
    assert {each for each in names(workspace.look()) if not each.startswith("runs")} == {
        "prepared/a",
        "prepared/a-more",
        "features/of-a",
        "teacher_predictions/of-a",
    }


def test_the_checkpoint_of_a_run_that_another_one_extends_stays(workspace: Workspace) -> None:
    """Until that one is finished, too."""
    first = workspace.run("1", "FINISHED")
    run_id = (first / "id").read_text()
    second = workspace.run("2", "KILLED", extends=run_id)
    assert names(workspace.look()) == set()
    workspace.store.set_terminated((second / "id").read_text(), "FINISHED")
    assert names(workspace.look()) == {f"runs/1/{CHECKPOINT}", f"runs/2/{CHECKPOINT}"}


def test_stores_stay_while_a_flow_run_is_active(workspace: Workspace) -> None:
    """It may be about to open one."""
    workspace.run("1", "FINISHED", images="a")
    workspace.run("2", "FINISHED", images="b")
    with live_runs.alive(workspace.folder, "run-1", "training"):
        cleaning = workspace.look()
    assert cleaning.active_runs == 1
    assert all(each.startswith("runs/") for each in names(cleaning))


def test_stores_stay_while_a_flow_run_may_be_active(workspace: Workspace) -> None:
    """One on another machine, of which nothing is known yet."""
    workspace.run("1", "FINISHED", images="a")
    workspace.run("2", "FINISHED", images="b")
    with live_runs.alive(workspace.folder, "run-1", "training"):
        record = json.loads((workspace.folder / "live" / "run-1.json").read_text(encoding="utf-8"))
    record |= {"flow_run_id": "run-2", "lock": "another-kernel 1 1", "place": "another-kernel 1"}
    (workspace.folder / "live" / "run-2.lock").touch()
    (workspace.folder / "live" / "run-2.json").write_text(json.dumps(record), encoding="utf-8")
    cleaning = workspace.look()
    assert cleaning.active_runs == 1
    assert names(cleaning) == {f"runs/1/{CHECKPOINT}", f"runs/2/{CHECKPOINT}"}


def test_a_store_that_is_being_repaired_stays(workspace: Workspace) -> None:
    """Its lock is held; all others are removed."""
    for number, images in enumerate("abc"):
        workspace.run(str(number), "FINISHED", images=images)
    cleaning = workspace.look()
    with file_locks.locked(workspace.folder / "prepared/.locks/a"):
        removed = remove(workspace.folder, cleaning)
    assert (workspace.folder / "prepared/a/images.npy").exists()
    assert not (workspace.folder / "prepared/b").exists()
    assert len(removed) == len(cleaning.removable) - 1


def test_a_checkpoint_that_runs_share_is_counted_once(workspace: Workspace) -> None:
    """Hard links to one file free its space when the last one goes."""
    first, second = workspace.run("1", "FINISHED"), workspace.run("2", "FINISHED")
    (second / CHECKPOINT).unlink()
    os.link(first / CHECKPOINT, second / CHECKPOINT)
    cleaning = workspace.look()
    assert (cleaning.files, cleaning.bytes) == (2, 1000)


def test_a_repeated_run_still_takes_the_weights(workspace: Workspace) -> None:
    """The record of the training no longer lists the checkpoint, and is trusted as before."""
    folder = workspace.run("1", "FINISHED")
    memory = StageMemory(workspace.folder)
    memory.enter("run", folder)
    ingredients = {"data": "1"}
    trained = Trained(best=folder / "training/best")
    memory.remember("train", trained, folder / "training", ingredients)
    remove(workspace.folder, workspace.look())
    notes: list[str] = []
    other = StageMemory(workspace.folder, on_note=notes.append)
    other.enter("another", workspace.folder / "runs/2")
    known = other.recall("train", ingredients, Trained, workspace.folder / "runs/2/training")
    assert known is not None, notes
    assert (known.best / "model.safetensors").read_bytes() == b"b" * 100
    assert not notes
    (folder / BEST).write_bytes(b"damaged")
    assert StageMemory(workspace.folder).recall("train", ingredients, Trained) is None


def test_checkpoints_stay_that_a_run_on_another_machine_extends(
    own_store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is not here, but its request is on the store."""
    del own_store
    monkeypatch.delenv(chosen.VARIABLE, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "team").mkdir()
    uri, checkpoint = (tmp_path / "team").as_uri(), "runs/1/training/checkpoint"
    with machine("a", uri) as folder:
        workspace, shared = Workspace(folder, client()), chosen.shared()
        finished = workspace.run("1", "FINISHED")
        assert shared is not None
        shared.publish(checkpoint, finished / "training", [Path(CHECKPOINT).name])
        kinds = [each.kind for each in workspace.look().removable]
        assert kinds == ["checkpoint", "object"]
    with machine("b", uri) as other:
        request = {"config": {"record": {"extends": (finished / "id").read_text()}}}
        (other / "runs/2").mkdir(parents=True)
        (other / "runs/2" / REQUEST_FILE).write_text(json.dumps(request))
        run_folders.send_file(other / "runs/2" / REQUEST_FILE)
    with machine("a", uri):
        assert workspace.look().removable == ()
