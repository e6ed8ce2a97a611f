"""Several processes train the last blocks as one does, and resume from whatever was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.errors import ConfigError, WorkerError
from patchline.pipeline.run_memory.cleaning import FEATURES
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import MODULE
from patchline.pipeline.training.processes.rank import MODULE as RANK
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.launcher import GROUP_FILE
from patchline.pipeline.workers.worker_process import run_worker
from tests.pipeline.training.parts.test_last_blocks import (
    assert_moved_alike,
    blocks_job,
    head_of,
    state_of,
)
from tests.pipeline.training.trained_jobs import Make, said, same, trained

Together = tuple[TrainingJob, TrainResult]


def _run(job: TrainingJob, unit: str = "", module: str = MODULE) -> TrainResult:
    """Run a job in a worker; at the first progress in a unit, kill the last process of a module."""
    killed: list[int] = []

    def on_event(event: Event) -> None:
        if unit and not killed and event["kind"] == "progress" and event["unit"] == unit:
            [worker] = [child for child in psutil.Process().children() if MODULE in _words(child)]
            family = [worker, *worker.children(recursive=True)]
            if victims := [each.pid for each in family if module in _words(each)]:
                killed.append(max(victims))
                os.kill(killed[0], signal.SIGKILL)

    try:
        return run_worker(MODULE, job.folder, job, TrainResult, on_event)
    finally:
        assert bool(killed) == bool(unit)


def _words(process: psutil.Process) -> list[str]:
    """Return the command of a process; none if it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def together(make_shared: Make) -> Together:
    """Return the job of a run that two processes have finished, and its result."""
    job = blocks_job(make_shared, "run", processes=2)
    return job, _run(job)


@pytest.mark.slow
def test_two_processes_train_the_blocks_as_one_does(
    make: Make, tmp_path: Path, together: Together
) -> None:
    """Features and tokens have the same bits, and the weights differ by rounding alone."""
    (job, several), alone = together, blocks_job(make, "run")
    one = trained(alone)
    ours, theirs = (
        sorted((each / FEATURES).rglob("*.npy")) for each in (tmp_path, job.folder.parent)
    )
    assert len(ours) == 2
    assert [each.name for each in ours] == [each.name for each in theirs]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(ours, theirs, strict=True))
    assert several.steps == one.steps
    assert several.fine_tuning is not None
    assert several.fine_tuning.share == one.fine_tuning.share
    assert several.best_validation_loss == pytest.approx(one.best_validation_loss, rel=1e-3)
    assert_moved_alike(head_of(alone), state_of(one.best), state_of(several.best), 0.01)
    left = {each.name for each in job.folder.iterdir()}
    assert not left & {"processes", "trained.safetensors", "previous.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "module"), [("tokens", MODULE), ("fold", MODULE), ("step", RANK)])
def test_what_is_killed_resumes_to_the_same_weights(
    make: Make, together: Together, unit: str, module: str
) -> None:
    """SIGKILL of the process that has started the others ends them too; the same job resumes.

    If one of the others is killed, all start again with it.
    """
    job = blocks_job(make, "run", processes=2)
    if module == MODULE:
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            _run(job, unit)
        result = _run(job)
    else:
        result = _run(job, unit, module)
        again = "all 2 were started again (restart 1 of 3)"
        assert any(again in message for message in said(job))
    assert result.fine_tuning == together[1].fine_tuning
    assert same(state_of(result.best), state_of(together[1].best))


def test_nodes_without_a_shared_folder_are_refused(make: Make, tmp_path: Path) -> None:
    """Before any process is started; the sentence says what to change."""
    job = blocks_job(make, "run", processes=2)
    group = {"nodes": ["127.0.0.1", "127.0.0.2"], "port": 0, "shares_folder": False}
    job.folder.mkdir(exist_ok=True)
    (job.folder / GROUP_FILE).write_text(json.dumps(group), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"processes is 2 on 2 nodes .* set launcher.nodes to 1"):
        trained(job)
    assert not (tmp_path / FEATURES).exists()
