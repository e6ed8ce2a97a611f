"""Two processes train as one does: the same gradients, exact resume, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.machine import Machine, choose_device
from patchline.pipeline.training.processes.process_launch import loopback_interface
from patchline.pipeline.training.processes.rank import MODULE as RANK
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event, EventWriter, read_events
from patchline.pipeline.workers.worker_process import run_worker
from tests.patience import patient
from tests.pipeline.training.conftest import MakeJob

MODULE = "patchline.pipeline.training"
TWO: dict[str, Any] = {"processes": 2, "threads": 2, "batch_size": 11}
"""An odd batch, so the parts differ; the last batch of an epoch is smaller still."""
GRADIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"class_weights": "balanced", "loss": "bce"},
    "mixup": {"mixup": 0.4, "class_weights": "balanced"},
    "cutmix": {"cutmix": 1.0, "accumulation": 2},
    "memory": {},
}
RANDOM: dict[str, Any] = {
    "model": {"dropout": 0.2, "stochastic_depth": 0.3},
    "training": {**TWO, "epochs": 2, "mixup": 0.2},
}


@pytest.fixture(scope="module")
def ranks(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingJob]:
    """Return jobs that two processes have done; both process all of them, to start only once."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {
        f"gradients-{name}": make_job(folder / name, training={**TWO, **changes})
        for name, changes in GRADIENTS.items()
    }
    jobs |= {name: make_job(folder / name, **RANDOM) for name in ("whole", "stopped")}
    stem = {"patch_embedding": {"name": "conv_stem", "norm": "batch"}}
    jobs["diverged"] = make_job(folder / "diverged", model=stem, training={**TWO, "epochs": 2})
    for name, job in jobs.items():
        (folder / f"{name}.json").write_text(job.model_dump_json(), encoding="utf-8")
    command = [
        sys.executable,
        "-P",
        "-m",
        "tests.pipeline.training.processes.training_ranks",
        str(folder),
    ]
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "PYTHONPATH": str(Path(__file__).parents[4]),
    }
    processes = [subprocess.Popen([*command, str(rank), "2"], env=environment) for rank in range(2)]
    assert [each.wait(patient(60)) for each in processes] == [0, 0]
    return jobs


@pytest.mark.parametrize("name", GRADIENTS)
def test_two_processes_have_the_gradients_of_one(
    ranks: dict[str, TrainingJob], tmp_path: Path, name: str
) -> None:
    """Loss, clipped gradients and correct images are those of one process, for uneven parts too."""
    job = ranks[f"gradients-{name}"]
    training = job.config.training.model_copy(update={"processes": 1})
    config = job.config.model_copy(update={"training": training})
    one = Training(
        job.model_copy(update={"config": config}), EventWriter(tmp_path / "events.jsonl")
    )
    for step in (0, one.order.steps_per_epoch - 1):
        one.state.step = step
        expected = one.step.compute_gradients(one.state, next(one.batches()))
        found = load_file(job.folder / f"gradients-{step}.safetensors")
        assert float(found.pop("loss")) == pytest.approx(float(expected.loss), abs=1e-5)
        assert float(found.pop("norm")) == pytest.approx(float(expected.norm), abs=1e-5)
        assert int(found.pop("correct")) == int(expected.correct)
        grads = {key: each.grad for key, each in one.state.model.named_parameters()}
        assert found.keys() == {key for key, each in grads.items() if each is not None}
        for key, gradient in found.items():
            torch.testing.assert_close(gradient, grads[key], atol=1e-5, rtol=0)


def test_a_resumed_group_ends_where_an_uninterrupted_one_does(
    ranks: dict[str, TrainingJob],
) -> None:
    """Stopped after a step and resumed, two processes reach the same bits, with dropout."""
    stopped, whole = ranks["stopped"].folder, ranks["whole"].folder
    warnings = [
        each["message"]
        for each in read_events(stopped / "events.jsonl")
        if each["kind"] == "warning"
    ]
    assert warnings == ["resuming from step 2"]
    for file in ("last.safetensors", "best/model.safetensors"):
        one, other = load_file(whole / file), load_file(stopped / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_all_processes_halve_their_micro_batches(ranks: dict[str, TrainingJob]) -> None:
    """If one process runs out of memory, all divide the batch, and nothing else changes."""
    events = read_events(ranks["gradients-memory"].folder / "events.jsonl")
    said = [event["message"] for event in events if event["kind"] == "warning"]
    assert said[0].startswith("The device is out of memory: each batch of 11 images is now divided")


def test_all_processes_restart_after_a_divergence(ranks: dict[str, TrainingJob]) -> None:
    """Infinite images in one process take all back to the beginning, and they train to the end."""
    folder = ranks["diverged"].folder
    said = [each["message"] for each in read_events(folder / "events.jsonl") if "message" in each]
    assert len(said) == 2
    assert said[0].startswith("Batch norm is not synchronised on a CPU: each of the 2 processes")
    assert said[1].startswith("The loss became nan at step 2")
    assert "restarting from step 0 with the learning rate times 0.5" in said[1]
    last = load_file(folder / "last.safetensors")
    assert all(tensor.isfinite().all() for tensor in last.values())


def test_each_process_has_dropout_of_its_own(
    ranks: dict[str, TrainingJob], make_job: MakeJob, tmp_path: Path
) -> None:
    """With dropout, two processes reach other weights than one, so the test above sees it."""
    settings = {**RANDOM["training"], "processes": 1}
    one = make_job(tmp_path, model=RANDOM["model"], training=settings)
    events = EventWriter(tmp_path / "events.jsonl")
    Training(one, events).run()
    ours, theirs = (
        load_file(folder / "best/model.safetensors") for folder in (tmp_path, ranks["whole"].folder)
    )
    assert not torch.equal(ours["head.weight"], theirs["head.weight"])


def test_too_small_a_batch_is_an_error(make_job: MakeJob, tmp_path: Path) -> None:
    """Each process needs two images of a batch."""
    with pytest.raises(ConfigError, match=r"processes is 8.*batch_size is 12\. Lower training"):
        make_job(tmp_path, training={"processes": 8, "batch_size": 12})


def test_more_processes_than_gpus_are_an_error(make_job: MakeJob, tmp_path: Path) -> None:
    """The error names both numbers; on a CPU any number is fine."""
    training = make_job(tmp_path, training={"processes": 3}).config.training
    machine = Machine(
        cpu_capability="AVX2", threads=2, devices={"cpu": "cpu", "cuda": "a GPU"}, gpus=2
    )
    assert choose_device(training, machine) == "cpu"
    on_gpu = training.model_copy(update={"device": "auto"})
    with pytest.raises(ConfigError, match=r"processes is 3, .* this machine has 2\. Lower"):
        choose_device(on_gpu, machine)


def _ranks(folder: Path) -> list[psutil.Process]:
    """Return the living processes of a training run, but not its worker process."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if RANK in words and str(folder) in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # it ended while we looked
    return found


@pytest.mark.slow
def test_a_killed_process_restarts_all_from_the_last_checkpoint(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """SIGKILL of one process: training continues and ends with the same weights."""
    changes: dict[str, Any] = {**RANDOM, "training": {**RANDOM["training"], "epochs": 20}}
    whole, killed = (make_job(tmp_path / name, **changes) for name in ("whole", "killed"))
    expected = run_worker(MODULE, whole.folder, whole, TrainResult, lambda _: None)
    victims: list[int] = []

    def kill(event: Event) -> None:
        if event["kind"] == "progress" and not victims and event["done"] > 10:
            victims.append(max(process.pid for process in _ranks(killed.folder)))
            os.kill(victims[0], signal.SIGKILL)

    events: list[Event] = []

    def see(event: Event) -> None:
        events.append(event)
        kill(event)

    result = run_worker(MODULE, killed.folder, killed, TrainResult, see)
    assert victims
    assert result.steps == expected.steps
    said = [event["message"] for event in events if event["kind"] == "warning"]
    assert said[0] == (
        "A training process ended unexpectedly: all 2 were started again (restart 1 of 3)."
    )
    numbered = [event["seq"] for event in events if event["kind"] != "log"]
    assert numbered == list(range(len(numbered)))
    one, other = (load_file(job.folder / "last.safetensors") for job in (whole, killed))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_killed_worker_leaves_no_process(make_job: MakeJob, tmp_path: Path) -> None:
    """SIGKILL of the process that started them ends all of them, and their data-loader workers."""
    changes = {"training": {**TWO, "epochs": 100_000}, "data": {"workers": 1}}
    job = make_job(tmp_path / "job", **changes)
    ended: list[psutil.Process] = []

    def kill(event: Event) -> None:
        if event["kind"] == "progress" and not ended:
            found = _ranks(job.folder)
            assert len(found) == 2
            [agent] = {process.ppid() for process in found}
            ended.extend(found)
            ended.extend(child for each in found for child in each.children(recursive=True))
            os.kill(agent, signal.SIGKILL)

    with pytest.raises(Exception, match="was killed by SIGKILL"):
        run_worker(MODULE, job.folder, job, TrainResult, kill)
    deadline = time.monotonic() + patient(30)
    while any(process.is_running() for process in ended) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(ended) >= 4
    assert not [process for process in ended if process.is_running()]
