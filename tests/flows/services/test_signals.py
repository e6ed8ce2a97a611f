"""However a run ends, MLflow knows it and no process is left."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.kills import has_work
from tests.conftest import patchline_here, write_photos
from tests.flows.training.runs import Begun, has_metrics, only_run, refused, store_of
from tests.patience import patient

pytestmark = pytest.mark.slow


@pytest.fixture
def run(empty_store: Path, tmp_path: Path) -> Iterator[Begun]:
    """Begin a run that would train for a very long time, and wait until it has validated once."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    write_photos(tmp_path / "photos", images=8)
    flags = "--preset none --training.epochs 100000 --data.workers 1"
    begun = Begun(tmp_path, f"run photos {flags}")
    try:
        begun.wait_until(lambda: has_metrics(tmp_path))
        yield begun
    finally:
        begun.end()


def _status(folder: Path) -> str:
    return str(only_run(store_of(folder)).info.status)


def test_a_signal_ends_the_run_as_killed(run: Begun, tmp_path: Path) -> None:
    """While it lives another command leaves it alone; then no process stays, and it may resume.

    The last line has the command; when the data has changed since, that is refused.
    """
    assert patchline_here("models", cwd=tmp_path).code == 0
    assert _status(tmp_path) == "RUNNING"
    assert run.end(signal.SIGINT) == 130
    assert _status(tmp_path) == "KILLED"
    assert "Traceback" not in run.said()
    resume = f"--resume {only_run(store_of(tmp_path)).info.run_id[:8]}"
    assert f"patchline run {resume}" in run.said()
    (tmp_path / "photos/across/000.png").unlink()
    assert "data has changed" in refused(tmp_path, resume)
    assert _status(tmp_path) == "KILLED"


def test_a_killed_worker_fails_the_run_with_a_sentence(run: Begun, tmp_path: Path) -> None:
    """SIGKILL of the training process gives exit code 1, FAILED, and the likely reason."""
    family = run.family()
    [worker] = [
        each
        for each in family
        if "patchline.pipeline.training" in each.cmdline() and has_work(each)
    ]
    worker.kill()
    assert run.process.wait(patient(180)) == 1
    assert not psutil.wait_procs(family, timeout=patient(60))[1]
    assert "SIGKILL" in run.said()
    assert "memory" in run.said()
    assert "Traceback" not in run.said()
    assert _status(tmp_path) == "FAILED"


def test_a_killed_command_leaves_nothing_alive_and_is_closed_by_the_next(
    run: Begun, tmp_path: Path
) -> None:
    """After SIGKILL of the command its processes end by themselves; `models` closes the run."""
    assert len(run.family()) >= 4  # command, Prefect server, training, data worker
    run.end()
    assert _status(tmp_path) == "RUNNING"
    assert patchline_here("models", cwd=tmp_path).code == 0
    assert _status(tmp_path) == "KILLED"
