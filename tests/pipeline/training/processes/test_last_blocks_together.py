"""Several processes train the last blocks as one does, and resume from whatever was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch

from patchline.pipeline.errors import ConfigError, WorkerError
from patchline.pipeline.files.sealed_files import read_tensors
from patchline.pipeline.run_memory.cleaning import FEATURES
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import MODULE
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.processes.rank import MODULE as RANK
from patchline.pipeline.training.train_result import RefitResult, TrainResult
from patchline.pipeline.workers.event_log import Event, EventWriter, read_events
from patchline.pipeline.workers.launcher import GROUP_FILE
from patchline.pipeline.workers.worker_process import run_worker
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.parts.test_last_blocks import blocks_job, trained, weights_of

pytestmark = pytest.mark.timeout(1500)  # each run starts its processes four times


def _run(job: TrainingJob, kill: str = "", module: str = MODULE) -> TrainResult:
    """Run a job in a worker; at the first progress in a unit, kill the last process of a module."""
    killed: list[int] = []

    def on_event(event: Event) -> None:
        if kill and not killed and event["kind"] == "progress" and event["unit"] == kill:
            [worker] = [child for child in psutil.Process().children() if MODULE in _words(child)]
            family = [worker, *worker.children(recursive=True)]
            victims = [each.pid for each in family if module in _words(each)]
            if victims:
                killed.append(max(victims))
                os.kill(killed[0], signal.SIGKILL)

    result = run_worker(MODULE, job.folder, job, TrainResult, on_event)
    assert bool(killed) == bool(kill)
    return result


def _words(process: psutil.Process) -> list[str]:
    """Return the command of a process; none if it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _same(one: Path, other: Path) -> bool:
    ours, theirs = weights_of(one), weights_of(other)
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def together(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Return the job of a run that two processes have finished."""
    folder = tmp_path_factory.mktemp("together")
    job = blocks_job(make_job, folder, "run", processes=2)
    result = _run(job)
    (folder / "result.json").write_text(result.model_dump_json(), encoding="utf-8")
    return job


def _result(job: TrainingJob) -> TrainResult:
    file = job.folder.with_name("result.json")
    return TrainResult.model_validate_json(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_two_processes_train_the_blocks_as_one_does(
    make_job: MakeJob, tmp_path: Path, together: TrainingJob
) -> None:
    """Features and tokens have the same bits, and the weights differ by rounding alone."""
    several, alone = _result(together), blocks_job(make_job, tmp_path, "run")
    one = trained(alone)
    ours, theirs = (
        sorted((each / FEATURES).rglob("*.npy")) for each in (tmp_path, together.folder.parent)
    )
    assert len(ours) == 2
    assert [each.name for each in ours] == [each.name for each in theirs]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(ours, theirs, strict=True))
    assert several.steps == one.steps
    assert one.fine_tuning is not None
    assert several.fine_tuning is not None
    assert several.fine_tuning.share == one.fine_tuning.share
    assert several.fine_tuning.held_out == one.fine_tuning.held_out > 0
    for a, b in zip(one.fine_tuning.tried, several.fine_tuning.tried, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-3)
    assert several.best_validation_loss == pytest.approx(one.best_validation_loss, rel=1e-3)
    start = weights_of(alone.folder / "head" / "best")
    by_one, by_two = weights_of(one.best), weights_of(several.best)
    for name, tensor in by_one.items():
        if name.endswith("query_key_value.bias"):
            continue  # adding to all keys changes nothing, so its gradient is rounding noise
        moved = (tensor - start[name]).norm()
        assert (by_two[name] - tensor).norm() <= 0.01 * moved, name
    assert not torch.equal(by_one["norm.weight"], start["norm.weight"])
    events = read_events(together.folder / "events.jsonl")
    assert [event["seq"] for event in events] == list(range(len(events)))
    units = {event["unit"] for event in events if event["kind"] == "progress"}
    assert units == {"features", "tokens", "step", "fold"}
    left = {each.name for each in together.folder.iterdir()}
    assert not left & {"processes", "trained.safetensors", "previous.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["tokens", "step", "fold"])
def test_a_killed_worker_resumes_to_the_same_weights(
    make_job: MakeJob, tmp_path: Path, together: TrainingJob, unit: str
) -> None:
    """SIGKILL of the process that has started the others, which ends them too."""
    job = blocks_job(make_job, tmp_path, "run", processes=2)
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        _run(job, kill=unit)
    resumed, expected = _run(job), _result(together)
    assert resumed.fine_tuning == expected.fine_tuning
    assert _same(resumed.best, expected.best)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["features", "step"])
def test_a_killed_process_restarts_all(
    make_job: MakeJob, tmp_path: Path, together: TrainingJob, unit: str
) -> None:
    """SIGKILL of one of them: the others start again with it, and reach the same weights.

    Features and tokens are computed by the same processes, which have ended by the time that the
    progress of so few tokens is read.
    """
    job = blocks_job(make_job, tmp_path, "run", processes=2)
    result, expected = _run(job, kill=unit, module=RANK), _result(together)
    said = [event["message"] for event in read_events(job.folder / "events.jsonl")
            if event["kind"] == "warning"]  # fmt: skip
    assert any("all 2 were started again (restart 1 of 3)" in each for each in said)
    assert result.fine_tuning == expected.fine_tuning
    assert _same(result.best, expected.best)


@pytest.mark.slow
def test_a_refit_in_two_processes_is_that_of_one(together: TrainingJob, tmp_path: Path) -> None:
    """On all images, as far as the part says, from the tokens of the run."""
    result = _result(together)
    assert result.fine_tuning is not None
    part = TrainingPart(
        refit=True,
        plan_steps_per_epoch=result.steps_per_epoch,
        regularization=result.fine_tuning.regularization,
        share=0.5,
    )
    refits = []
    for processes in (1, 2):
        training = together.config.training.model_copy(update={"processes": processes})
        record = together.config.record.model_copy(update={"step_plan": result.step_plan})
        config = together.config.model_copy(update={"training": training, "record": record})
        own = {"part": part, "config": config, "folder": tmp_path / f"by-{processes}"}
        job = together.model_copy(update=own)
        refits.append(run_worker(MODULE, job.folder, job, RefitResult, lambda _: None))
    one, two = refits
    assert (one.images, one.steps) == (two.images, two.steps)
    start = weights_of(together.folder / "head" / "best")
    by_one, by_two = weights_of(one.weights), weights_of(two.weights)
    name = "blocks.1.attention.projection.weight"
    moved = (by_one[name] - start[name]).norm()
    assert moved > 0
    assert (by_two[name] - by_one[name]).norm() <= 0.01 * moved
    assert read_tensors(two.weights / "model.safetensors")
    assert not (tmp_path / "by-2" / "trained.safetensors").exists()


def test_nodes_without_a_shared_folder_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    """Before any process is started; the sentence says what to change."""
    job = blocks_job(make_job, tmp_path, "run", processes=2)
    group = {"nodes": ["127.0.0.1", "127.0.0.2"], "port": 0, "shares_folder": False}
    job.folder.mkdir(exist_ok=True)
    (job.folder / GROUP_FILE).write_text(json.dumps(group), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"processes is 2 on 2 nodes .* set launcher.nodes to 1"):
        train(job, EventWriter(job.folder / "events.jsonl"))
    assert not (tmp_path / FEATURES).exists()
