"""Two machines without a disk in common: one starts a run and is killed, the other finishes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.run_memory import interrupted_runs
from tests.conftest import write_photos
from tests.flows.training.runs import Begun, ran, refused
from tests.object_server import ObjectServer
from tests.pipeline.workspace.machines import machine

_SETTINGS = (
    "--preset none --training.threads 1 --training.precision float32 "
    "--evaluation.explanations=false --promotion.no-package-check"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of images that both machines have."""
    return write_photos(tmp_path / "photos", images=30)


def trained_alone(job_file: Path, folder: Path) -> bytes:
    """Do a training job again, without an interruption, and return its best weights."""
    from patchline.pipeline.training.job import TrainingJob
    from tests.pipeline.training.trained_jobs import trained

    job = TrainingJob.model_validate_json(job_file.read_text(encoding="utf-8"))
    best: Path = trained(job.model_copy(update={"folder": folder})).best
    return (best / "model.safetensors").read_bytes()


def found_by(name: str, env: dict[str, str], patch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return what a machine that resumes the last run of a workspace begins with."""
    patch.setenv("MLFLOW_TRACKING_URI", env["MLFLOW_TRACKING_URI"])
    with machine(name, env["PATCHLINE_WORKSPACE"]) as workspace:
        run = interrupted_runs.find("last", workspace / "runs").folder
        files = (file for file in run.rglob("*") if file.is_file())
        return {str(file.relative_to(run)): file.read_bytes() for file in files}


def copied(objects: ObjectServer, bucket: str) -> str:
    """Copy the objects of a bucket into a new one, names first, and return its name."""
    target = objects.new_bucket()
    source, copy = (
        chosen.open_store(parse_address(f"s3://{each}", "-")) for each in (bucket, target)
    )
    keys = [info.key for info in source.list("")]
    for key in sorted(keys, key=lambda each: not each.startswith("team/names/")):
        content = source.read(key)
        assert content is not None
        copy.write(key, content.data)
    return target


@pytest.mark.slow
@pytest.mark.usefixtures("shared_prefect")
def test_another_machine_finishes_a_killed_run(
    objects: ObjectServer,
    bucket: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the weights of a run that was never killed; a repetition computes nothing.

    A machine with a backup, in another bucket and with another database of runs, begins with the
    same files.
    """
    first, second, store = tmp_path / "first", tmp_path / "second", tmp_path / "team.db"
    first.mkdir()
    env = {
        "PATCHLINE_WORKSPACE": f"s3://{bucket}/team",
        "MLFLOW_TRACKING_URI": f"sqlite:///{store}",
    }
    run = f"{data} {_SETTINGS} --training.epochs 16"
    begun = Begun(first, f"run {run}", env)
    begun.wait_until(lambda: "epoch 5:" in begun.said())
    begun.end()
    of_backup = {
        "PATCHLINE_WORKSPACE": f"s3://{copied(objects, bucket)}/team",
        "MLFLOW_TRACKING_URI": f"sqlite:///{shutil.copy(store, tmp_path / 'backup.db')}",
    }
    found = found_by("second", env, monkeypatch)
    assert found_by("restored", of_backup, monkeypatch) == found
    _, said = ran(second, "--resume last", env)
    assert "resuming from step" in said
    [training] = second.glob(".patchline/runs/*/training")
    weights = (training / "best/model.safetensors").read_bytes()
    assert weights == trained_alone(training / "job.json", tmp_path / "alone")
    _, said = ran(second, run, env)
    for words in ("its images are used", "its training is used", "its result is used"):
        assert words in said


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
