"""However a run ends, MLflow knows it and no process is left."""

from __future__ import annotations

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from benchmarks.kills import has_work
from tests.conftest import patchline_here, write_photos
from tests.flows.training.runs import TINY, Begun, has_metrics, only_run, refused, store_of
from tests.patience import patient, until

pytestmark = pytest.mark.slow
_VERY_LONG = "run photos " + TINY.replace("epochs 2 ", "epochs 100000 ") + " --data.workers"


@pytest.fixture
def folder(empty_store: Path, tmp_path: Path) -> Path:
    """Return a folder with photos and a store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    write_photos(tmp_path / "photos", images=8)
    return tmp_path


def _begun(folder: Path, workers: int = 0) -> Begun:
    """Begin a run that would train for a very long time, and wait until it has validated once."""
    begun = Begun(folder, f"{_VERY_LONG} {workers}")
    until(lambda: has_metrics(folder) or begun.process.poll() is not None, begun.said, seconds=300)
    assert begun.process.poll() is None, begun.said()
    return begun


def _status(folder: Path) -> str:
    return str(only_run(store_of(folder)).info.status)


def test_a_killed_command_leaves_nothing_alive_and_is_closed_by_the_next(folder: Path) -> None:
    """After SIGKILL of the command its processes end by themselves; `models` closes the run."""
    run = _begun(folder, workers=1)
    assert len(run.family()) >= 4  # command, Prefect server, training, data worker
    run.end()
    assert _status(folder) == "RUNNING"
    assert patchline_here("models", cwd=folder).code == 0
    assert _status(folder) == "KILLED"


@pytest.mark.usefixtures("shared_prefect")
def test_a_signal_ends_the_run_as_killed(folder: Path) -> None:
    """While it lives another command leaves it alone; then no process stays, and it may resume.

    The last line has the command; when the data has changed since, that is refused.
    """
    run = _begun(folder)
    assert patchline_here("models", cwd=folder).code == 0
    assert _status(folder) == "RUNNING"
    assert run.end(signal.SIGINT) == 130
    assert _status(folder) == "KILLED"
    assert "Traceback" not in run.said()
    resume = f"--resume {only_run(store_of(folder)).info.run_id[:8]}"
    assert f"patchline run {resume}" in run.said()
    (folder / "photos/across/000.png").unlink()
    assert "data has changed" in refused(folder, resume)
    assert _status(folder) == "KILLED"


@pytest.mark.usefixtures("shared_prefect")
def test_a_killed_worker_fails_the_run_with_a_sentence(folder: Path) -> None:
    """SIGKILL of the training process gives exit code 1, FAILED, and the likely reason."""
    this = psutil.Process()
    before = this.children(recursive=True)

    def kill() -> list[psutil.Process]:
        until(lambda: has_metrics(folder), "nothing is trained", seconds=300)
        family = [each for each in this.children(recursive=True) if each not in before]
        [worker] = [
            each
            for each in family
            if "patchline.pipeline.training" in each.cmdline() and has_work(each)
        ]
        worker.kill()
        return family

    with ThreadPoolExecutor(1) as threads:
        killing = threads.submit(kill)
        done = patchline_here(*_VERY_LONG.split(), "0", cwd=folder)
        family = killing.result()
    assert done.code == 1
    assert not psutil.wait_procs(family, timeout=patient(60))[1]
    assert "SIGKILL" in done.err
    assert "memory" in done.err
    assert "Traceback" not in done.err
    assert _status(folder) == "FAILED"
