"""A loss or gradient that is not finite: nothing is damaged, and training restarts repeatably."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import RunError
from patchline.pipeline.training.checkpoints import checkpoint
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.training.validation import Validator
from patchline.pipeline.workers.event_log import EventWriter, read_events
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.test_loop import (
    RANDOM,
    _figures,
    _same,
    _Stop,
    _StoppingWriter,
    _weights,
)

EXPLOSIVE: dict[str, Any] = {
    "model": RANDOM["model"],
    "training": {"precision": "float32", "epochs": 3},
    "optimizer": {"learning_rate": 2e-3},
}


def _exploding(training: Training, step: int, *, cuts: int = 1) -> Training:
    """Let the loss of a step be nan until the rate has been cut often enough."""
    state = training.state

    def explode(_module: nn.Module, _inputs: Any, logits_BK: torch.Tensor) -> torch.Tensor:
        diverges = state.model.training and state.step == step and len(state.rate_cuts) < cuts
        return logits_BK * math.nan if diverges else logits_BK

    state.model.register_forward_hook(explode)
    return training


def _run(
    job: TrainingJob, step: int, events: EventWriter | None = None, cuts: int = 1
) -> TrainResult:
    events = events or EventWriter(job.folder / "events.jsonl")
    try:
        return _exploding(Training(job, events), step, cuts=cuts).run()
    finally:
        events.close()


@pytest.fixture(scope="module")
def recovered(
    make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainingJob, TrainResult]:
    """Return a run that diverged at its seventh step and recovered; epochs have 4 steps."""
    job = make_job(tmp_path_factory.mktemp("recovered"), **EXPLOSIVE)
    return job, _run(job, step=6)


def test_it_restarts_from_the_last_validation(recovered: tuple[TrainingJob, TrainResult]) -> None:
    """One line says so, and the result says from which step the rate was halved."""
    job, result = recovered
    assert result.rate_cuts == (4,)
    assert [record.step for record in result.history] == [4, 8, 12]
    events = read_events(job.folder / "events.jsonl")
    [said] = [event["message"] for event in events if event["kind"] == "warning"]
    assert said.startswith("The loss became nan at step 7, at learning rate 0.0")
    assert "restarting from step 4 with the learning rate times 0.5" in said
    assert not list(job.folder.glob("restart-*"))


def test_the_batch_is_saved_with_its_paths(recovered: tuple[TrainingJob, TrainResult]) -> None:
    """Images as they were augmented, and which files they come from."""
    job, _ = recovered
    described = json.loads((job.folder / "diverged_step_7.json").read_text())
    with np.load(job.folder / "diverged_step_7.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    assert images.shape == (12, 16, 16, 3)
    assert (described["step"], described["epoch"], described["loss"]) == (7, 2, "nan")
    assert len(described["images"]) == 12
    for image, label in zip(described["images"], labels, strict=True):
        assert image["path"].startswith(image["label"])
        assert job.classes[label] == image["label"]
    events = read_events(job.folder / "events.jsonl")
    names = [event["name"] for event in events if event["kind"] == "artifact"]
    assert names == ["diverged_step_7.npz", "diverged_step_7.json"]


@pytest.mark.parametrize("stop_after", [3, 5, 6, 9])
def test_an_interruption_changes_nothing(
    recovered: tuple[TrainingJob, TrainResult],
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_after: int,
) -> None:
    """Killed before or after it diverged, it restarts from the same step, to the same weights."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)  # a checkpoint after each step
    job = make_job(tmp_path, **EXPLOSIVE)
    with pytest.raises(_Stop):
        _run(job, 6, _StoppingWriter(tmp_path / "events.jsonl", stop_after))
    result = _run(job, 6)
    assert result.rate_cuts == recovered[1].rate_cuts
    assert _figures(result) == _figures(recovered[1])
    assert _same(_weights(job), _weights(recovered[0]))


def test_the_recorded_config_replays_it(
    recovered: tuple[TrainingJob, TrainResult], tmp_path: Path
) -> None:
    """With the recorded cut, the same weights come out without diverging."""
    job, result = recovered
    config = launching.replayable(job.config, result)
    replay = job.model_copy(update={"config": config, "folder": tmp_path})
    again = _run(replay, step=6)
    assert not [e for e in read_events(tmp_path / "events.jsonl") if e["kind"] == "warning"]
    assert _figures(again) == _figures(result)
    assert _same(_weights(replay), _weights(job))


def test_it_may_diverge_again(make_job: MakeJob, tmp_path: Path) -> None:
    """A second time, it restarts from the same step with a quarter of the rate."""
    job = make_job(tmp_path, **EXPLOSIVE)
    result = _run(job, step=2, cuts=2)
    assert result.rate_cuts == (0, 0)
    unharmed = make_job(tmp_path / "low", **{**EXPLOSIVE, "optimizer": {"learning_rate": 5e-4}})
    low = _run(unharmed, step=10**6)
    assert [r.learning_rate for r in result.history] == pytest.approx(
        [r.learning_rate for r in low.history]
    )


def test_the_last_update_before_a_validation_counts_too(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later step sees its weights, only the validation does."""
    job = make_job(tmp_path, **EXPLOSIVE)
    training = Training(job, EventWriter(job.folder / "events.jsonl"))
    metrics = Validator.metrics

    def diverging(self: Validator, *given: Any) -> dict[str, Any]:
        diverges = training.state.step == 8 and not training.state.rate_cuts
        return {**metrics(self, *given), **({"validation_loss": math.nan} if diverges else {})}

    monkeypatch.setattr(Validator, "metrics", diverging)
    result = training.run()
    assert (result.rate_cuts, result.steps) == ((4,), 12)
    [said] = [e["message"] for e in read_events(job.folder / "events.jsonl")
              if e["kind"] == "warning"]  # fmt: skip
    assert "validation loss became nan at step 8" in said


def test_without_retries_it_is_an_error_and_nothing_is_updated(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """The error names the step and the batch's file, and the weights are as before."""
    job = make_job(tmp_path, **{**EXPLOSIVE, "training": {"retries_after_divergence": 0}})
    training = _exploding(Training(job, EventWriter(tmp_path / "events.jsonl")), 0)
    before = {name: each.clone() for name, each in training.state.model.state_dict().items()}
    with pytest.raises(RunError, match=r"loss became nan at step 1, .*diverged_step_1\.json"):
        training.run()
    after = training.state.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_gradient_that_is_not_finite_counts_too(make_job: MakeJob, tmp_path: Path) -> None:
    """A finite loss with an infinite gradient would spoil the weights as well."""
    job = make_job(tmp_path, **{**EXPLOSIVE, "training": {"retries_after_divergence": 0}})
    training = Training(job, EventWriter(tmp_path / "events.jsonl"))
    head = training.state.model.get_parameter("head.weight")
    head.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    with pytest.raises(RunError, match=r"gradient norm became (inf|nan) at step 1"):
        training.run()
