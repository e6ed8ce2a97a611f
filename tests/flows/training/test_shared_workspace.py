"""Two machines without a disk in common: one starts a run and is killed, the other finishes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.address import parsed
from tests.conftest import write_photos
from tests.flows.training.runs import Begun, ran, refused
from tests.object_server import ObjectServer

_SETTINGS = (
    "--preset none --training.threads 1 --training.precision float32 "
    "--evaluation.corruptions 0 --evaluation.explanations=false"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of images that both machines have."""
    return write_photos(tmp_path / "photos", images=30)


def weights(machine: Path) -> bytes:
    """Return the weights of the only run of a machine."""
    [file] = machine.glob(".patchline/runs/*/training/best/model.safetensors")
    return file.read_bytes()


def copied(objects: ObjectServer, bucket: str) -> str:
    """Copy the objects of a bucket into a new one, names first, and return its name."""
    target = objects.new_bucket()
    source, copy = (chosen.opened(parsed(f"s3://{each}", "-")) for each in (bucket, target))
    keys = [info.key for info in source.list("")]
    for key in sorted(keys, key=lambda each: not each.startswith("team/names/")):
        content = source.read(key)
        assert content is not None
        copy.write(key, content.data)
    return target


@pytest.mark.slow
@pytest.mark.usefixtures("shared_prefect")
def test_another_machine_finishes_a_killed_run(
    objects: ObjectServer, bucket: str, data: Path, tmp_path: Path
) -> None:
    """It has the weights of a run that was never killed, and a repetition computes nothing.

    So does a machine with a backup, in another bucket and with another database of runs.
    """
    first, second, alone = tmp_path / "first", tmp_path / "second", tmp_path / "alone"
    restored = tmp_path / "restored"
    for machine in (first, second, alone, restored):
        machine.mkdir()
    env = {
        **objects.environment,
        "PATCHLINE_WORKSPACE": f"s3://{bucket}/team",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'team.db'}",
    }
    run = f"{data} {_SETTINGS} --training.epochs 16"
    begun = Begun(first, f"run {run}", env)
    begun.wait_until(lambda: "epoch 5:" in begun.said())
    begun.end()
    of_backup = {
        **objects.environment,
        "PATCHLINE_WORKSPACE": f"s3://{copied(objects, bucket)}/team",
        "MLFLOW_TRACKING_URI": f"sqlite:///{shutil.copy(tmp_path / 'team.db', restored)}",
    }
    for machine, variables in ((second, env), (restored, of_backup)):
        _, said = ran(machine, "--resume last", variables)
        assert "resuming from step" in said
    _, said = ran(second, run, env)
    for words in ("its images are used", "its training is used", "its result is used"):
        assert words in said
    ran(alone, run)
    [resumed] = {
        file.read_bytes()
        for file in second.glob(".patchline/runs/*/training/best/model.safetensors")
    }
    assert resumed == weights(alone) == weights(restored)


def test_a_wrong_workspace_ends_before_anything_is_computed(
    bucket: str, data: Path, tmp_path: Path
) -> None:
    """A missing bucket and an address with credentials have exit code 2, and leave no run."""
    for address, words in (
        ("no-such-bucket", "names the bucket no-such-bucket"),
        (f"a:b@{bucket}", "holds more than a bucket and a path"),
    ):
        assert words in refused(tmp_path, f"{data} --workspace s3://{address}/team")
    assert not (tmp_path / ".patchline/runs").exists()
