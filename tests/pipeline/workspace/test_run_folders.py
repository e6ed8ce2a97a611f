"""What one machine leaves of a run, another one finds: the request, and the newest checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace import chosen, run_folders
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors
from patchline.pipeline.workspace.run_folders import CheckpointSender
from patchline.pipeline.workspace.shared_files import Reference
from patchline.plugins.stores import objects as remote_store
from tests.object_server import FaultyConnection
from tests.pipeline.workspace.machines import machine

HOSTILE = ("../../../../stolen", "training/../../../../stolen", "C:\\stolen", "a\\..\\..\\stolen")


def write_checkpoint(training: Path, step: int) -> CheckpointSender:
    """Write what a training leaves beside its checkpoint, and return what sends it."""
    (training / f"best-{step}").mkdir(parents=True)
    (training / f"best-{step}/model.safetensors").write_text(f"best of {step}")
    state, progress = {"state": torch.tensor([step])}, json.dumps({"step": step})
    write_tensors(training / "last.safetensors", state, {"progress": progress})
    (training / "events.jsonl").write_text("{}\n" * step)
    (training / "worker.log").write_text("lines of this machine")
    return CheckpointSender(training)


def test_another_machine_has_request_and_checkpoint(team: str) -> None:
    """All that belongs to the newest checkpoint is there, and nothing of this machine alone."""
    with machine("a", team) as workspace:
        training = workspace / "runs/20260101-x/training"
        sender = write_checkpoint(training, 1)
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
    """A checkpoint replaces one of an earlier step, or a damaged one, and never one of a later."""
    for name, step, expected in (("a", 3, 3), ("b", 1, 2), ("c", 1, 2)):
        with machine(name, team) as workspace:
            training = workspace / "runs/x/training"
            if name == "a":
                sender = write_checkpoint(training, 2)
                sender.send(2)
                sender.wait()
            write_checkpoint(training, step)  # not sent: the machine was killed
            if name == "c":
                (training / "last.safetensors").write_bytes(b"damaged")
            run_folders.fetch(training.parent)
            assert int(read_tensors(training / "last.safetensors")[0]["state"]) == expected
            assert name == "c" or (training / f"best-{step}").exists() == (step == expected)


def test_a_store_that_is_away_stops_no_training(
    connection: FaultyConnection,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The checkpoint stays on the disk, one sentence says so, and a later one is sent."""
    monkeypatch.setattr(remote_store, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(remote_store, "_LEAST_SECONDS", 1.5)
    with machine("a", f"s3://{bucket}/team") as workspace, caplog.at_level(logging.WARNING):
        sender = write_checkpoint(workspace / "runs/x/training", 1)
        shared = chosen.find_shared_files()
        assert shared is not None
        connection.fault, connection.methods = "slow_down", ("PUT",)
        for _ in range(2):
            sender.send(1)
            sender.wait()
        [said] = caplog.messages
        assert said.startswith("The checkpoint is kept on this machine alone: s3://")
        assert shared.names("runs/") == []
        connection.methods = ()
        sender.send(1)
        sender.wait()
        assert shared.names("runs/") == ["runs/x/training/checkpoint"]


@pytest.mark.parametrize("path", HOSTILE)
def test_an_object_names_no_place_outside_the_run(team: str, tmp_path: Path, path: str) -> None:
    """Neither the folder of a result nor a file of the request; nothing is written there."""
    with machine("a", team) as workspace:
        run, shared = workspace / "runs/x", chosen.find_shared_files()
        write_text(run / "request.json", "{}")
        run_folders.send_file(run / "request.json")
        assert shared is not None
        files = shared.uploaded(run, ["request.json"])
        evil = {"folder": f"runs/x/{path}"}
        shared.replace("runs/x/stages/train", Reference(files=files, value=evil), None)
        shared.replace("runs/y/request", Reference(files={path: files["request.json"]}), None)
    with machine("b", team) as workspace:
        before = set(tmp_path.rglob("*"))
        for name in ("x", "y"):
            with pytest.raises(DataError, match=r"names the path '.*', which (leads out|begins)"):
                run_folders.fetch(workspace / "runs" / name, results=True)
        assert not [each for each in set(tmp_path.rglob("*")) - before if each.is_file()]
