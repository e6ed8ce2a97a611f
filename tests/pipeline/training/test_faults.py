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
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.validation import Validator
from tests.pipeline.training.trained_jobs import (
    RANDOM,
    Make,
    Stop,
    StoppingWriter,
    events_of,
    figures,
    opened,
    said,
    same,
    weights_of,
)

EXPLOSIVE: dict[str, Any] = {
    "model": RANDOM["model"],
    "training": {"epochs": 3},
    "optimizer": {"learning_rate": 2e-3},
}


def _exploding(job: TrainingJob, step: int, *, stop_after: int = 0, cuts: int = 1) -> Training:
    """Let the loss of a step be nan until the rate has been cut so many times."""
    training = Training(job, StoppingWriter(job, stop_after))
    state = training.state

    def explode(_module: nn.Module, _inputs: Any, logits_BK: torch.Tensor) -> torch.Tensor:
        diverges = state.model.training and state.step == step and len(state.rate_cuts) < cuts
        return logits_BK * math.nan if diverges else logits_BK

    state.model.register_forward_hook(explode)
    return training


@pytest.fixture(scope="module")
def recovered(make_shared: Make) -> tuple[TrainingJob, Any]:
    """Return a run that diverged at its seventh step and recovered; epochs have 4 steps."""
    job = make_shared(**EXPLOSIVE)
    return job, _exploding(job, step=6).run()


def test_it_restarts_from_the_last_validation(recovered: tuple[TrainingJob, Any]) -> None:
    """One line says so, and the result says from which step the rate was halved."""
    job, result = recovered
    assert result.rate_cuts == (4,)
    assert [record.step for record in result.history] == [4, 8, 12]
    [message] = said(job)
    assert message.startswith("The loss became nan at step 7, at learning rate 0.0")
    assert "restarting from step 4 with the learning rate times 0.5" in message
    assert not list(job.folder.glob("restart-*"))


def test_the_batch_is_saved_with_its_paths(recovered: tuple[TrainingJob, Any]) -> None:
    """Images as they were augmented, and which files they come from."""
    job, _ = recovered
    described = json.loads((job.folder / "diverged_step_7.json").read_text())
    with np.load(job.folder / "diverged_step_7.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    assert images.shape == (12, 16, 16, 3)
    assert (described["step"], described["epoch"], described["loss"]) == (7, 2, "nan")
    for image, label in zip(described["images"], labels, strict=True):
        assert image["path"].startswith(image["label"])
        assert job.classes[label] == image["label"]
    names = [event["name"] for event in events_of(job, "artifact")]
    assert names[1:] == ["diverged_step_7.npz", "diverged_step_7.json"]


@pytest.mark.usefixtures("_checkpoint_each_step")
@pytest.mark.parametrize("stop_after", [5, 9])
def test_an_interruption_changes_nothing(
    recovered: tuple[TrainingJob, Any], make: Make, stop_after: int
) -> None:
    """Killed before or after it diverged, it restarts from the same step, to the same weights."""
    job = make(**EXPLOSIVE)
    with pytest.raises(Stop):
        _exploding(job, 6, stop_after=stop_after).run()
    result = _exploding(job, 6).run()
    assert result.rate_cuts == recovered[1].rate_cuts
    assert figures(result) == figures(recovered[1])
    assert same(weights_of(job), weights_of(recovered[0]))


def test_the_recorded_config_replays_it(recovered: tuple[TrainingJob, Any], tmp_path: Path) -> None:
    """With the recorded cut, the same weights come out without diverging."""
    job, result = recovered
    config = launching.replayable(job.config, result)
    replay = job.model_copy(update={"config": config, "folder": tmp_path})
    again = _exploding(replay, step=6).run()
    assert not said(replay)
    assert figures(again) == figures(result)
    assert same(weights_of(replay), weights_of(job))


def test_the_last_update_before_a_validation_counts_too(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later step sees its weights, only the validation does."""
    job = make(**EXPLOSIVE)
    training = opened(job)
    metrics = Validator.metrics

    def diverging(self: Validator, *given: Any) -> dict[str, Any]:
        diverges = training.state.step == 8 and not training.state.rate_cuts
        return {**metrics(self, *given), **({"validation_loss": math.nan} if diverges else {})}

    monkeypatch.setattr(Validator, "metrics", diverging)
    result = training.run()
    assert (result.rate_cuts, result.steps) == ((4,), 12)
    [message] = said(job)
    assert "validation loss became nan at step 8" in message


def test_after_two_restarts_it_is_an_error_and_nothing_is_updated(
    make: Make, tmp_path: Path
) -> None:
    """The error names the step and the batch's file, and the weights are as before."""
    job = make(**EXPLOSIVE)
    training = _exploding(job, 0, cuts=3)
    state = training.state.model.state_dict()
    before = {name: each.clone() for name, each in state.items()}
    with pytest.raises(RunError, match=r"loss became nan at step 1, .*diverged_step_1\.json"):
        training.run()
    assert same(before, state)
    assert [each.partition("learning rate times ")[2][:4] for each in said(job)] == ["0.5.", "0.25"]
    assert not (tmp_path / "best").exists()


def test_a_gradient_that_is_not_finite_counts_too(make: Make) -> None:
    """A finite loss with an infinite gradient would spoil the weights as well."""
    training = opened(make(**EXPLOSIVE))
    head = training.state.model.get_parameter("head.weight")
    head.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    with pytest.raises(RunError, match=r"gradient norm became (inf|nan) at step 1"):
        training.run()
