"""Two machines without a disk in common: one starts a run and is killed, the other finishes it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.address import parsed
from tests.conftest import PATCHLINE, patchline, write_photos
from tests.object_server import ObjectServer, faulty_connection
from tests.patience import patient

_SETTINGS = (
    *("--preset", "none", "--training.epochs", "40", "--training.threads", "1"),
    *("--training.precision", "float32"),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of images that both machines have."""
    return write_photos(tmp_path / "photos", images=40)


def weights(machine: Path) -> bytes:
    """Return the weights of the only run of a machine."""
    [file] = machine.glob(".patchline/runs/*/training/best/model.safetensors")
    return file.read_bytes()


def killed_run(machine: Path, data: Path, env: dict[str, str]) -> None:
    """Start a run and kill its process once a checkpoint is on the store, while it trains."""
    with (machine / "run.log").open("w") as log:
        process = subprocess.Popen(
            [str(PATCHLINE), "run", str(data), *_SETTINGS],
            cwd=machine,
            env={**os.environ, **env},
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + patient(240)
    while "epoch 15:" not in (text := (machine / "run.log").read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()


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
@pytest.mark.timeout(1500)
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
    killed_run(first, data, env)
    of_backup = {
        **objects.environment,
        "PATCHLINE_WORKSPACE": f"s3://{copied(objects, bucket)}/team",
        "MLFLOW_TRACKING_URI": f"sqlite:///{shutil.copy(tmp_path / 'team.db', restored)}",
    }
    for machine, variables in ((second, env), (restored, of_backup)):
        done = patchline("run", "--resume", "last", cwd=machine, env=variables, timeout=600)
        assert done.code == 0, done.err
        assert "resuming from step" in done.err
    again = patchline("run", data, *_SETTINGS, "--json", cwd=second, env=env)
    assert again.code == 0, again.err
    for words in ("its images are used", "its training is used", "its result is used"):
        assert words in again.err
    whole = patchline("run", data, *_SETTINGS, cwd=alone)
    assert whole.code == 0, whole.err
    [resumed] = {
        file.read_bytes()
        for file in second.glob(".patchline/runs/*/training/best/model.safetensors")
    }
    assert resumed == weights(alone) == weights(restored)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_images_larger_than_the_cache_stay_on_the_store(
    objects: ObjectServer, bucket: str, data: Path, tmp_path: Path
) -> None:
    """A run whose connection is lost in the middle of an epoch resumes, with the same weights."""
    remote, local = tmp_path / "remote", tmp_path / "local"
    remote.mkdir()
    local.mkdir()
    settings = (
        *("--preset", "none", "--training.epochs", "4", "--training.threads", "1"),
        *("--training.precision", "float32", "--training.shuffle-window", "0.2"),
        *("--training.batch-size", "8"),
    )
    with faulty_connection(objects) as connection:
        env = {
            **connection.environment,
            "PATCHLINE_WORKSPACE": f"s3://{bucket}/team",
            "PATCHLINE_CACHE_LIMIT": "200kB",
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'runs.db'}",
        }
        connection.fault, connection.methods, connection.after = "hang_up", ("GET", "PUT"), 80
        failed = patchline("run", data, *settings, cwd=remote, env=env, timeout=600)
        assert failed.code == 1, failed.err
        assert f"Error: s3://{bucket}/team cannot be reached" in failed.err
        assert "Traceback" not in failed.err
        assert "are larger than the cache of this machine" in failed.err
        connection.methods = ()
        done = patchline("run", "--resume", "last", cwd=remote, env=env, timeout=600)
    assert done.code == 0, done.err
    assert not list(remote.glob(".patchline/pages/*"))
    assert not list(remote.glob(".patchline/prepared/*/images.npy"))
    whole = patchline("run", data, *settings, cwd=local)
    assert whole.code == 0, whole.err
    assert weights(remote) == weights(local)


@pytest.mark.slow
def test_a_store_that_becomes_read_only_loses_nothing(
    objects: ObjectServer, bucket: str, data: Path, tmp_path: Path
) -> None:
    """The run fails with one sentence; what was computed by then is not computed again."""
    settings = ("--preset", "none", "--training.epochs", "1")
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'runs.db'}"}
    with faulty_connection(objects) as connection:
        connection.fault, connection.methods, connection.after = "denied", ("PUT",), 12
        env = {**connection.environment, **store, "PATCHLINE_WORKSPACE": f"s3://{bucket}/team"}
        failed = patchline("run", data, *settings, cwd=tmp_path, env=env)
        assert failed.code == 1
        assert f"Error: s3://{bucket}/team may not be written" in failed.err
        assert "Traceback" not in failed.err
        connection.methods = ()
        done = patchline("run", "--resume", "last", cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    assert "done before the interruption" in done.err


def test_a_wrong_workspace_ends_before_anything_is_computed(
    bucket: str, data: Path, tmp_path: Path
) -> None:
    """A missing bucket and an address with credentials have exit code 2, and leave no run."""
    gone = patchline("run", data, "--workspace", "s3://no-such-bucket/team", cwd=tmp_path)
    assert (gone.code, "names the bucket no-such-bucket" in gone.err) == (2, True)
    secret = patchline("run", data, "--workspace", f"s3://a:b@{bucket}/team", cwd=tmp_path)
    assert (secret.code, "holds more than a bucket and a path" in secret.err) == (2, True)
    assert not (tmp_path / ".patchline/runs").exists()
