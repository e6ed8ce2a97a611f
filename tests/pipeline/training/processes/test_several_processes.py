"""Several ranks train as one does: the same gradients, exact resume, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.files.sealed_files import write_tensors
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE
from patchline.pipeline.run_memory.cleaning import FEATURES
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.machine import Machine, choose_device
from patchline.pipeline.training.part import TrainingPart
from patchline.pipeline.training.parts import last_blocks, probe, token_fit
from patchline.pipeline.training.parts.fine_tuning import between_both
from patchline.pipeline.training.processes.machines import LOOPBACK, interface_of
from patchline.pipeline.training.processes.rank import MODULE as RANK
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.training.training_data import open_data
from patchline.pipeline.workers.event_log import Event, EventWriter, read_events
from patchline.pipeline.workers.worker_process import run_worker
from tests.patience import patient
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.label_set_jobs import label_set_job
from tests.pipeline.training.parts.test_probe import with_weights
from tests.pipeline.training.processes.training_ranks import FEATURES_TOGETHER, random_head

pytestmark = pytest.mark.usefixtures("few_penalties")

MODULE = "patchline.pipeline.training"
SIZE = 3
"""Ranks that are started together; with three, the order of a sum decides its last bits."""
THREE: dict[str, Any] = {"processes": SIZE, "threads": SIZE, "batch_size": 11}
"""An odd batch, so the parts differ; the last batch of an epoch is smaller still."""
GRADIENTS: dict[str, dict[str, Any]] = {
    "mixup": {"mixup": 0.4, "class_weights": "balanced", "loss": "bce"},
    "cutmix": {"cutmix": 1.0, "accumulation": 2},
    "smaller": {"initial_image_scale": 0.5, "sampling": "balanced"},
}
RANDOM: dict[str, Any] = {
    "data": {"validation_fraction": 0.28},
    "model": {"dropout": 0.2, "stochastic_depth": 0.3},
    "training": {**THREE, "epochs": 2, "mixup": 0.2, "initial_image_scale": 0.5},
    "optimizer": {"name": "muon"},
}
TRAINED: dict[str, dict[str, Any]] = {
    "whole": RANDOM,
    "stopped": RANDOM,
    "diverged": {
        "model": {"patch_embedding": {"name": "conv_stem", "norm": "batch"}},
        "training": {**THREE, "epochs": 2},
    },
    "averaged": {
        "model": {"stochastic_depth": 0.5},
        "training": {**THREE, "epochs": 2, "average_last": 2, "stochastic_depth_ramp": 0.5},
    },
    "masked": {
        "objective": {"name": "mae", "decoder_depth": 1},
        "model": {"patch_embedding": {"patch_size": 4}},
        "training": {**THREE, "epochs": 1},
    },
    "timed": {
        "optimizer": {"name": "schedule_free", "schedule": "constant"},
        "training": {**THREE, "time_limit": "0.3s", "early_stopping": 5},
    },
}


SETS = ("gradients-sets", "sets")
"""Jobs whose images have sets of labels."""
SHORT_MEMORY = """
import os

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingPlugin, PatchTokens, PluginConfig


class Stem(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.grid, self.steps = (4, 4), 0
        self.stem = nn.Conv2d(context.channels, context.embed_dim, kernel_size=4, stride=4)

    def forward(self, images_BCHW):
        self.steps += self.training
        if os.environ.get("RANK") == "1" and self.steps == 5 and len(images_BCHW) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return PatchTokens(self.stem(images_BCHW).flatten(2).transpose(1, 2), self.grid)


plugin = PatchEmbeddingPlugin(
    summary="Its fifth step needs much memory", paper="-", config_class=PluginConfig, build=Stem
)
"""
"""A patch embedding in a file."""


@pytest.fixture(scope="module")
def ranks(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingJob]:
    """Return jobs that three ranks have done; all of them process all jobs, to start only once."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {
        f"gradients-{name}": make_job(folder / name, training={**THREE, **changes})
        for name, changes in GRADIENTS.items()
    }
    jobs |= {name: make_job(folder / name, **changes) for name, changes in TRAINED.items()}
    sets = {"training": {**THREE, "mixup": 0.4, "class_weights": "balanced", "epochs": 1}}
    jobs |= {name: label_set_job(folder / name, images=76, **sets) for name in SETS}
    refit = make_job(folder / "refit", training={**THREE, "epochs": 1})
    jobs["refit"] = refit.model_copy(update={"part": TrainingPart(refit=True, epochs=0.5)})
    longer = make_job(
        folder / "zz-extended", **{**TRAINED["diverged"], "training": {**THREE, "epochs": 4}}
    )
    steps = 2 * -(-len(open_data(longer).training.rows) // THREE["batch_size"])
    extended = ExtendedTraining(run_id="earlier", folder=jobs["diverged"].folder, steps=steps)
    jobs["zz-extended"] = longer.model_copy(update={"extends": extended})
    head = {"model": {"init": "x.safetensors"}, "training": {**THREE, "trainable": "head"}}
    jobs["head"] = with_weights(make_job(folder / "head", **head), folder / "head-work")
    both = {**head, "training": {**THREE, "trainable": "head_then_all", "epochs": 1}}
    jobs["head_first"] = with_weights(make_job(folder / "both", **both), folder / "both-work")
    last = {"trainable": "last_blocks", "last_blocks": 1, "token_views": 3, "epochs": 1}
    blocks = {**head, "training": {**THREE, **last}, "augmentation": {"name": "light"}}
    jobs["blocks"] = with_weights(make_job(folder / "last", **blocks), folder / "last-work")
    for name, job in jobs.items():
        (folder / f"{name}.json").write_text(job.model_dump_json(), encoding="utf-8")
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": interface_of(LOOPBACK),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONPATH": str(Path(__file__).parents[4]),
    }
    command = [sys.executable, "-P", "-m", f"{__package__}.training_ranks", str(folder), str(SIZE)]
    subprocess.run(command, env=environment, check=True, timeout=patient(120))
    return jobs


def _of_rank(job: TrainingJob, rank: int) -> dict[str, torch.Tensor]:
    return load_file(job.folder / f"rank-{rank}.safetensors")


def _messages(job: TrainingJob, kind: str = "warning") -> list[str]:
    events = read_events(job.folder / "events.jsonl")
    return [event["message"] for event in events if event["kind"] == kind]


def _alone(job: TrainingJob, folder: Path) -> Training:
    """Return the training of a job in this process."""
    training = job.config.training.model_copy(update={"processes": 1})
    config = job.config.model_copy(update={"training": training})
    alone = job.model_copy(update={"config": config, "folder": folder})
    return Training(alone, EventWriter(folder / "events.jsonl"))


@pytest.mark.parametrize("name", [*GRADIENTS, "sets"])
def test_several_ranks_have_the_gradients_of_one(
    ranks: dict[str, TrainingJob], tmp_path: Path, name: str
) -> None:
    """Loss, clipped gradients and correct images are those of one process, for uneven parts too."""
    job = ranks[f"gradients-{name}"]
    one, found = _alone(job, tmp_path), _of_rank(job, 0)
    for step in (0, one.order.steps_per_epoch - 1):
        one.state.step = step
        expected = one.step.compute_gradients(one.state, next(one.batches()))
        of_step = {
            key.removeprefix(f"{step}."): value
            for key, value in found.items()
            if key.startswith(f"{step}.")
        }
        assert float(of_step.pop("loss")) == pytest.approx(float(expected.loss), abs=1e-5)
        assert float(of_step.pop("norm")) == pytest.approx(float(expected.norm), abs=1e-5)
        assert int(of_step.pop("correct")) == int(expected.correct)
        grads = {key: each.grad for key, each in one.state.model.named_parameters()}
        assert of_step.keys() == {key for key, each in grads.items() if each is not None}
        for key, gradient in of_step.items():
            torch.testing.assert_close(gradient, grads[key], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [*TRAINED, "sets", "refit", "zz-extended"])
def test_all_ranks_end_with_the_same_bits(ranks: dict[str, TrainingJob], name: str) -> None:
    """Weights, averages and moments: every optimizer, objective and part of a batch."""
    first, *others = (_of_rank(ranks[name], rank) for rank in range(SIZE))
    assert len(first) > 10
    for other in others:
        assert first.keys() == other.keys()
        assert [key for key in first if not torch.equal(first[key], other[key])] == []


def test_resumed_ranks_end_where_uninterrupted_ones_do(ranks: dict[str, TrainingJob]) -> None:
    """Stopped after three steps and resumed, three ranks reach the same bits, with dropout."""
    assert _messages(ranks["stopped"])[-1].startswith("resuming from step ")
    one, other = (_of_rank(ranks[each], 0) for each in ("whole", "stopped"))
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []
    best, resumed = (
        load_file(ranks[each].folder / "best/model.safetensors") for each in ("whole", "stopped")
    )
    assert all(torch.equal(best[key], resumed[key]) for key in best)


def test_another_number_of_ranks_resumes_too(ranks: dict[str, TrainingJob]) -> None:
    """One process takes up what three have begun; the checkpoint knows nothing of ranks."""
    folder = ranks["stopped"].folder.with_name("half-stopped")
    result = _alone(ranks["stopped"], folder).run()
    events = read_events(folder / "events.jsonl")
    said = [event["message"] for event in events if event["kind"] == "warning"]
    assert said[0].startswith("resuming from step ")
    assert [record.step for record in result.history] == [result.steps // 2, result.steps]


def test_all_ranks_restart_after_a_divergence(ranks: dict[str, TrainingJob]) -> None:
    """Infinite images in one process take all back to the beginning, and they train to the end."""
    of_batch_norm, said = _messages(ranks["diverged"])
    assert of_batch_norm == (
        "Batch norm is not synchronised on a CPU: each of the 3 processes normalises its own part "
        "of a batch."
    )
    assert said.startswith("The loss became nan at step 2")
    assert "restarting from step 0 with the learning rate times 0.5" in said
    first, *others = (_of_rank(ranks["diverged"], rank) for rank in range(SIZE))
    assert all(tensor.isfinite().all() for tensor in first.values())
    for other in others:  # the first one alone keeps a copy of the state
        assert all(torch.equal(first[name], tensor) for name, tensor in other.items())


@pytest.mark.parametrize(
    ("name", "metric", "field"),
    [("whole", "accuracy", "validation_accuracy"), ("sets", "mAP", "validation_map")],
)
def test_ranks_validate_each_image_once(
    ranks: dict[str, TrainingJob], tmp_path: Path, name: str, metric: str, field: str
) -> None:
    """Loss and accuracy, or mAP, of the last validation are those that one process computes."""
    job = ranks[name]
    alone = _alone(job, tmp_path)
    state = _of_rank(job, 0)
    averages = {
        key.removeprefix("average."): value
        for key, value in state.items()
        if key.startswith("average.")
    }
    alone.state.average.model.load_state_dict(averages)
    images = alone.validator.images
    assert images % SIZE, "the parts differ in size"
    expected = alone.validator.metrics(alone.state.average.model, images, images)
    events = read_events(job.folder / "events.jsonl")
    said = [event["values"] for event in events if event["kind"] == "metrics"][-1]
    assert said["validation/loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)
    assert said[f"validation/{metric}"] == pytest.approx(expected[field], abs=1e-6)


def test_features_that_ranks_compute_together_are_those_of_one(
    ranks: dict[str, TrainingJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are equal, bit for bit, if each process has one thread; so is the fitted head."""
    job = ranks["head"]
    monkeypatch.setattr(probe, "suitable_batch_size", lambda *_: FEATURES_TOGETHER)
    training = job.config.training.model_copy(update={"processes": 1, "threads": 1})
    config = job.config.model_copy(update={"training": training})
    own = {"config": config, "folder": tmp_path / "alone", "workspace": tmp_path / "work"}
    alone = job.model_copy(update=own)
    alone.folder.mkdir()
    one = probe.probe(alone, EventWriter(alone.folder / "events.jsonl"))
    several = TrainResult.model_validate_json((job.folder / "result.json").read_text("utf-8"))
    workspaces = (tmp_path / "work", job.folder.with_name("head-work"))
    files = [next((each / FEATURES).rglob("*.npy")) for each in workspaces]
    images = len(np.load(files[0]))
    assert images % (SIZE * FEATURES_TOGETHER), "the last batches are fewer, and smaller"
    assert files[0].name == files[1].name
    assert files[0].read_bytes() == files[1].read_bytes()
    assert several.best_validation_loss == one.best_validation_loss
    weights = [load_file(each.best / "model.safetensors") for each in (one, several)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    progress = [each for each in read_events(job.folder / "events.jsonl") if "unit" in each]
    assert [each["done"] for each in progress if each["unit"] == "features"][-1] == images


def test_ranks_fit_the_head_before_they_train_all_weights(ranks: dict[str, TrainingJob]) -> None:
    """Its features are those of a head alone, all ranks start from it, and none fits it again."""
    head, both = ranks["head"], ranks["head_first"]
    files = [
        next((job.folder.with_name(work) / FEATURES).rglob("*.npy"))
        for job, work in ((head, "head-work"), (both, "both-work"))
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    fitted = [job / "best/model.safetensors" for job in (head.folder, both.folder / "head")]
    assert fitted[0].read_bytes() == fitted[1].read_bytes()
    result = TrainResult.model_validate_json((both.folder / "result.json").read_text("utf-8"))
    assert result.steps == -(-len(open_data(both).training.rows) // THREE["batch_size"])
    record = between_both(both, result).fine_tuning
    assert record is not None
    probed = TrainResult.model_validate_json((head.folder / "result.json").read_text("utf-8"))
    assert record.accuracy_at(0.0) == pytest.approx(probed.best_validation_accuracy)
    assert record.accuracy_at(1.0) == pytest.approx(result.best_validation_accuracy)


def test_ranks_share_tokens_and_train_from_them_as_one_does(
    ranks: dict[str, TrainingJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are equal, bit for bit, and the weights up to rounding."""
    job = ranks["blocks"]
    for module in (probe, last_blocks):
        monkeypatch.setattr(module, "suitable_batch_size", lambda *_: FEATURES_TOGETHER)
    training = job.config.training.model_copy(update={"processes": 1, "threads": 1})
    config = job.config.model_copy(update={"training": training})
    own = {"config": config, "folder": tmp_path / "alone", "workspace": tmp_path / "work"}
    alone, events = job.model_copy(update=own), EventWriter(tmp_path / "events.jsonl")
    tokens = last_blocks.tokens_together(alone, events, Ranks())
    [ours] = (job.folder.with_name("last-work") / FEATURES).rglob(tokens.file.name)
    array_MVND, data = np.load(tokens.file), open_data(job)
    assert array_MVND.shape[:2] == (len(data.training.rows) + len(data.validation_rows), 3)
    assert len(array_MVND) % (SIZE * FEATURES_TOGETHER), "the last batches are fewer, and smaller"
    assert ours.read_bytes() == tokens.file.read_bytes()
    write_tensors(tokens.head, random_head(alone))
    fit = token_fit.fit_alone(alone.model_copy(update={"tokens": tokens}), events)
    together = load_file(job.folder / "trained.safetensors")
    weights = fit.model.state_dict()
    assert together.keys() == weights.keys()
    assert not torch.equal(weights["head.weight"], fit.fitted["head.weight"])
    for name, tensor in weights.items():
        if not name.endswith("query_key_value.bias"):  # where a gradient is rounding noise
            torch.testing.assert_close(together[name], tensor, atol=1e-4, rtol=0)


def test_a_time_limit_ends_all_ranks_at_the_same_step(ranks: dict[str, TrainingJob]) -> None:
    """The clock is that of rank 0, so all plan the same steps; progress is written by rank 0."""
    events = read_events(ranks["timed"].folder / "events.jsonl")
    [*_, last] = [event for event in events if event["kind"] == "progress"]
    assert last["done"] == last["total"] > 1
    assert [event["seq"] for event in events] == list(range(len(events)))


def test_a_rank_that_does_not_answer_is_named(ranks: dict[str, TrainingJob]) -> None:
    """The first that gives up says so; the others end with it instead of waiting forever."""
    folder = ranks["whole"].folder.parent
    said = [(folder / f"hanging-{rank}.txt").read_text("utf-8") for rank in range(SIZE - 1)]
    named = [each for each in said if each.startswith("A training process has not responded for")]
    assert named
    assert all("Connection closed by peer" in each for each in said if each not in named)


def test_each_rank_has_dropout_of_its_own(ranks: dict[str, TrainingJob], tmp_path: Path) -> None:
    """With dropout, three ranks reach other weights than one, so the tests above see it."""
    one = _alone(ranks["whole"], tmp_path)
    one.run()
    ours, theirs = one.state.model.state_dict(), _of_rank(ranks["whole"], 0)
    assert not torch.equal(ours["head.weight"], theirs["model.head.weight"])


def test_too_small_a_batch_is_an_error(make_job: MakeJob, tmp_path: Path) -> None:
    """Each process needs two images of a batch."""
    with pytest.raises(ConfigError, match=r"processes is 8.*batch_size is 12\. Lower training"):
        make_job(tmp_path, training={"processes": 8, "batch_size": 12})


@pytest.mark.parametrize(("size", "of_machine"), [(1, 1), (2, 1), (2, 2), (6, 3)])
def test_a_replay_gives_each_rank_as_many_threads(size: int, of_machine: int) -> None:
    """The threads that are recorded are those of one machine, however many there are."""
    ranks = Ranks()
    ranks.size, ranks._share_threads = size, of_machine
    own = ranks.own_threads(8)
    assert own == 8 // of_machine
    recorded = ranks.threads_of_machine(own)
    assert recorded <= 8
    assert ranks.own_threads(recorded) == own


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
    training = {**RANDOM["training"], "processes": 2, "epochs": 20}
    changes: dict[str, Any] = {**RANDOM, "training": training}
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
def test_a_rank_without_memory_restarts_all_with_smaller_micro_batches(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank runs out of memory in its fifth step; the result is that of the recorded halving."""
    (tmp_path / "short_memory.py").write_text(SHORT_MEMORY, encoding="utf-8")
    monkeypatch.setenv(FILES_VARIABLE, str(tmp_path / "short_memory.py"))
    settings: dict[str, Any] = {"processes": 2, "epochs": 3}
    model = {"patch_embedding": {"name": "short_memory"}}
    job = make_job(tmp_path / "job", model=model, training=settings)
    events: list[Event] = []
    result = run_worker(MODULE, job.folder, job, TrainResult, events.append)
    assert result.halvings == (4,)
    said = [event["message"] for event in events if event["kind"] == "warning"]
    assert said == [
        "resuming from step 4",
        (
            "The device is out of memory: each batch of 12 images is now divided into 2 "
            "micro-batches. The effective batch size is unchanged."
        ),
    ]
    replayed = make_job(
        tmp_path / "replay", model=model, training=settings, record={"halvings": (4,)}
    )
    run_worker(MODULE, replayed.folder, replayed, TrainResult, lambda _: None)
    one, other = (load_file(each.folder / "last.safetensors") for each in (job, replayed))
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)  # compilers need a minute of both cores
def test_compiled_ranks_repeat_their_weights(make_job: MakeJob, tmp_path: Path) -> None:
    """Each rank compiles the shapes of its own parts; compiling changes the bits, so it shows."""
    settings: dict[str, Any] = {**THREE, "processes": 2, "epochs": 1}
    states = []
    for name, compiled in (("plain", False), ("one", True), ("other", True)):
        job = make_job(tmp_path / name, training={**settings, "compile": compiled})
        result = run_worker(MODULE, job.folder, job, TrainResult, lambda _: None)
        assert result.compiled == compiled
        states.append(load_file(job.folder / "last.safetensors"))
    plain, one, other = states
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert not all(torch.equal(one[key], plain[key]) for key in one)
    for key in one:
        torch.testing.assert_close(one[key], plain[key], atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_a_killed_worker_leaves_no_process(make_job: MakeJob, tmp_path: Path) -> None:
    """SIGKILL of the process that started them ends all of them, and their data-loader workers."""
    training = {**THREE, "processes": 2, "epochs": 100_000}
    changes = {"training": training, "data": {"workers": 1}}
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
