"""What one machine leaves of a run, another one finds: the request, and the newest checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from patchline.pipeline.errors import DataError
from patchline.pipeline.files.sealed_files import read_tensors, write_tensors
from patchline.pipeline.workspace import chosen, remote_store, run_folders
from patchline.pipeline.workspace.run_folders import CheckpointSender
from patchline.pipeline.workspace.shared_files import Reference
from tests.object_server import ObjectServer, faulty_connection
from tests.pipeline.workspace.machines import machine

HOSTILE = ("../../../../stolen", "training/../../../../stolen", "C:\\stolen", "a\\..\\..\\stolen")


def write_checkpoint(training: Path, step: int, events: int) -> None:
    """Write what a training leaves beside its checkpoint."""
    (training / f"best-{step}").mkdir(parents=True)
    (training / f"best-{step}/model.safetensors").write_text(f"best of {step}")
    state, progress = {"state": torch.tensor([step])}, json.dumps({"step": step})
    write_tensors(training / "last.safetensors", state, {"progress": progress})
    (training / "events.jsonl").write_text("{}\n" * events)
    (training / "worker.log").write_text("lines of this machine")


def step_of(training: Path) -> int:
    """Return the step of the checkpoint in a folder."""
    return int(read_tensors(training / "last.safetensors")[0]["state"])


def test_another_machine_has_request_and_checkpoint(team: str) -> None:
    """All that belongs to the newest checkpoint is there, and nothing of this machine alone."""
    with machine("a", team) as workspace:
        training = workspace / "runs/20260101-x/training"
        write_checkpoint(training, 1, events=3)
        sender = CheckpointSender(training)
        sender.send(1)
        (training.parent / "request.json").write_text("{}")
        run_folders.send_file(training.parent / "request.json")
        sender.wait()
        sender.finish()
        assert not list(workspace.rglob(".building-*"))
    with machine("b", team) as workspace:
        run = workspace / "runs/20260101-x"
        assert run_folders.fetch(run)
        files = {each.relative_to(run).as_posix() for each in run.rglob("*") if each.is_file()}
        assert files == {
            *("request.json", "training/last.safetensors", "training/events.jsonl"),
            "training/best-1/model.safetensors",
        }
        assert not run_folders.fetch(workspace / "runs/20260101-y")


def test_the_machine_that_is_further_keeps_its_own(team: str) -> None:
    """A checkpoint replaces one of an earlier step, and never one of a later step."""
    with machine("a", team) as workspace:
        training = workspace / "runs/x/training"
        write_checkpoint(training, 2, events=3)
        sender = CheckpointSender(training)
        sender.send(2)
        sender.wait()
        write_checkpoint(training, 3, events=9)  # not sent: the machine was killed
        run_folders.fetch(training.parent)
        assert step_of(training) == 3
    with machine("b", team) as workspace:
        training = workspace / "runs/x/training"
        write_checkpoint(training, 1, events=2)
        run_folders.fetch(training.parent)
        assert step_of(training) == 2
        assert not (training / "best-1").exists()
    with machine("c", team) as workspace:
        training = workspace / "runs/x/training"
        write_checkpoint(training, 1, events=2)
        (training / "last.safetensors").write_bytes(b"damaged")
        run_folders.fetch(training.parent)
        assert step_of(training) == 2


def test_a_local_workspace_sends_nothing(tmp_path: Path) -> None:
    """Without an address nothing is copied, and no thread is started."""
    training = tmp_path / ".patchline/runs/x/training"
    write_checkpoint(training, 1, events=1)
    sender = CheckpointSender(training)
    sender.send(1)
    sender.wait()
    run_folders.send_file(training / "events.jsonl")
    assert not list(training.parent.glob(".building-*"))
    assert not run_folders.fetch(training.parent)


def test_a_store_that_is_away_stops_no_training(
    objects: ObjectServer,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The checkpoint stays on the disk, one sentence says so, and a later one is sent."""
    monkeypatch.setattr(remote_store, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(remote_store, "_LEAST_SECONDS", 1.5)
    with faulty_connection(objects) as connection:
        for name, value in connection.environment.items():
            monkeypatch.setenv(name, value)
        with machine("a", f"s3://{bucket}/team") as workspace, caplog.at_level(logging.WARNING):
            training = workspace / "runs/x/training"
            sender = CheckpointSender(training)
            connection.fault, connection.methods = "slow_down", ("PUT",)
            for step in (1, 2):
                write_checkpoint(training, step, events=step)
                sender.send(step)
                sender.wait()
            [said] = caplog.messages
            assert said.startswith("The checkpoint is kept on this machine alone: s3://")
            shared = chosen.shared()
            assert shared is not None
            assert shared.names("runs/") == []
            connection.methods = ()
            sender.send(2)
            sender.wait()
            assert shared.names("runs/") == ["runs/x/training/checkpoint"]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("where", ["a folder", "s3"])
@pytest.mark.parametrize("path", HOSTILE)
def test_an_object_names_no_place_outside_the_run(
    team: str, bucket: str, tmp_path: Path, where: str, path: str
) -> None:
    """Neither the folder of a result nor a file of the request; nothing is written there."""
    uri = f"s3://{bucket}/team" if where == "s3" else team
    with machine("a", uri) as workspace:
        (workspace / "runs/x").mkdir(parents=True)
        (workspace / "runs/x/request.json").write_text("{}")
        run_folders.send_file(workspace / "runs/x/request.json")
        shared = chosen.shared()
        assert shared is not None
        files = shared.uploaded(workspace / "runs/x", ["request.json"])
        evil = {"folder": f"runs/x/{path}"}
        shared.replace("runs/x/stages/train", Reference(files=files, value=evil), None)
        shared.replace("runs/y/request", Reference(files={path: files["request.json"]}), None)
    with machine("b", uri) as workspace:
        before = set(tmp_path.rglob("*"))
        for run in ("x", "y"):
            with pytest.raises(DataError, match=r"names the path '.*', which (leads out|begins)"):
                run_folders.fetch(workspace / "runs" / run, results=True)
        assert not [each for each in set(tmp_path.rglob("*")) - before if each.is_file()]
