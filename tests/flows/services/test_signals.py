"""However a run ends, MLflow knows it and no process is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.kills import has_work
from tests.conftest import PATCHLINE, patchline, write_photos
from tests.patience import patient

_SECONDS = patient(180.0)


class LongRun:
    """A `patchline run` that would train for a very long time."""

    def __init__(self, folder: Path, empty_store: Path, *flags: str) -> None:
        self.folder = folder
        shutil.copy(empty_store, folder / "mlflow.db")
        write_photos(folder / "photos", images=8)
        arguments = ["run", "photos", "--preset", "none", "--training.epochs", "100000", *flags]
        self.errors = folder / "stderr.txt"
        with self.errors.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(PATCHLINE), *arguments],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
                # A shell lets what it starts in the background ignore SIGINT.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads yet
            )

    def wait_until_it_trains(self) -> None:
        """Return when the training has validated once."""
        _until(lambda: any('"metrics"' in line for line in self.events()), "no metrics came")

    def events(self) -> list[str]:
        """The lines that the training has written so far."""
        files = list((self.folder / ".patchline/runs").glob("*/training/events.jsonl"))
        return files[0].read_text(encoding="utf-8").splitlines() if files else []

    def family(self) -> list[psutil.Process]:
        """All processes of the run."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def worker(self) -> psutil.Process:
        """The training process."""
        [found] = [
            p for p in self.family() if "patchline.pipeline.training" in p.cmdline() and has_work(p)
        ]
        return found

    def end(self) -> tuple[int, str]:
        """Wait for the command and return its exit code and its words."""
        code = self.process.wait(_SECONDS)
        return code, self.errors.read_text(encoding="utf-8")

    def status(self) -> str:
        """What MLflow says about the run."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.folder / 'mlflow.db'}")
        [experiment] = [e for e in client.search_experiments() if e.name == "photos"]
        [run] = client.search_runs([experiment.experiment_id])
        return str(run.info.status)


StartLongRun = Callable[..., LongRun]


@pytest.fixture
def long_run(empty_store: Path, tmp_path: Path) -> Iterator[StartLongRun]:
    """Return a function that starts a long run; what is left of it is killed in the end."""
    started: list[LongRun] = []

    def start(*flags: str) -> LongRun:
        started.append(LongRun(tmp_path, empty_store, *flags))
        started[-1].wait_until_it_trains()
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def _until(condition: Callable[[], Any], complaint: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


def _gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=patient(60))
    assert not alive, [process.cmdline() for process in alive]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "signal")],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_ends_the_run_as_killed(
    long_run: StartLongRun, number: signal.Signals, code: int, words: str
) -> None:
    """SIGINT and SIGTERM close the run as KILLED, end every process, and say so in a line."""
    run = long_run()
    family = run.family()
    os.kill(run.process.pid, number)
    ended, said = run.end()
    assert ended == code
    assert words in said
    assert "Traceback" not in said
    _gone(family)
    assert run.status() == "KILLED"


@pytest.mark.slow
def test_a_killed_worker_fails_the_run_with_a_sentence(long_run: StartLongRun) -> None:
    """SIGKILL of the training process gives exit code 1, FAILED, and the likely reason."""
    run = long_run()
    family = run.family()
    run.worker().kill()
    code, said = run.end()
    assert code == 1
    assert "SIGKILL" in said
    assert "memory" in said
    assert "Traceback" not in said
    _gone(family)
    assert run.status() == "FAILED"


@pytest.mark.slow
def test_a_killed_command_leaves_nothing_alive_and_is_closed_by_the_next(
    long_run: StartLongRun, tmp_path: Path
) -> None:
    """After SIGKILL of the command its processes end by themselves; `models` closes the run."""
    run = long_run("--data.workers", "1")
    family = run.family()
    assert len(family) >= 4  # command, Prefect server, training, data worker
    run.process.kill()
    _gone(family)
    assert run.status() == "RUNNING"
    assert patchline("models", cwd=tmp_path).code == 0
    assert run.status() == "KILLED"


@pytest.mark.slow
def test_a_run_that_is_alive_is_left_alone(long_run: StartLongRun, tmp_path: Path) -> None:
    """Another command in the same store does not close a run that still trains."""
    run = long_run()
    assert patchline("models", cwd=tmp_path).code == 0
    assert run.status() == "RUNNING"
    os.kill(run.process.pid, signal.SIGTERM)
    run.end()


@pytest.mark.slow
def test_an_error_in_training_fails_the_run(tmp_path: Path) -> None:
    """A loss that is not finite ends with exit code 1, FAILED, and the remedy."""
    write_photos(tmp_path / "photos", images=8)
    plugin = tmp_path / "exploding.py"
    plugin.write_text(_EXPLODING, encoding="utf-8")
    done = patchline(
        *(
            "run",
            "photos",
            "--preset",
            "none",
            "--plugin",
            plugin,
            "--model.name",
            "exploding",
            "--json",
        ),
        cwd=tmp_path,
    )
    assert done.code == 1
    assert "loss became nan" in done.err
    assert "Traceback" not in done.err
    assert not done.out
    files = list((tmp_path / ".patchline/runs").glob("*/training/result.json"))
    assert json.loads(files[0].read_text(encoding="utf-8"))["error"]["class"] == "RunError"
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [run] = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert run.info.status == "FAILED"


_EXPLODING = '''
"""A model whose logits are not numbers."""

import torch
from torch import nn

from patchline.plugin_api import ModelPlugin, PluginConfig


class ExplodingConfig(PluginConfig):
    """Nothing to set."""


class Exploding(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(context.num_classes))

    def forward(self, images_BCHW):
        return images_BCHW.mean((1, 2, 3))[:, None] * self.weight * float("nan")


plugin = ModelPlugin(
    summary="Explodes", paper="", config_class=ExplodingConfig, build=Exploding
)
'''
