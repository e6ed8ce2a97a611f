"""A training step asks nothing of its device that waits or that some lack; what it costs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from patchline.pipeline.config import RunConfig
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.progressive_learning import ProgressiveSize
from patchline.pipeline.training.speed.training_speed import ComputeShare, RecentRate, forward_flops
from patchline.pipeline.training.speed.trial_steps import (
    TrialSettings,
    trial_steps,
)
from patchline.pipeline.training.train_step import Gradients, TrainStep
from tests.pipeline.models.probing.tiny_models import image_spec
from tests.pipeline.training.trained_jobs import Make, opened

IMAGE = image_spec(16)
WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
EVERYTHING: dict[str, Any] = {
    "augmentation": {"name": "standard"},
    "optimizer": {"name": "adamw"},
    "model": {"name": "vit", "stochastic_depth": 0.2, "patch_dropout": 0.3, "dropout": 0.1},
    "training": {"mixup": 0.5, "cutmix": 1.0, "class_balance": "weights"},
    "record": {"halvings": [0]},
}
SETS = {
    **EVERYTHING,
    "training": {**EVERYTHING["training"], "loss": "asymmetric"},
    "data": {"task": "multi_label"},
}


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch leaves it
    """Records the names and the results' types of all operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(getattr(func, "_schema", func)).partition("(")[0].partition(".")[0]
        self.counts[name] += 1
        found = (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
        self.types.update(leaf.dtype for leaf in found)
        return result


@pytest.mark.parametrize("settings", [EVERYTHING, SETS], ids=["one label", "sets"])
def test_a_step_reads_no_value_and_computes_nothing_in_float64(settings: dict[str, Any]) -> None:
    """Reading a value would wait for a GPU in each step, and MPS has no float64."""
    config = RunConfig.model_validate(settings)
    model = build_model(config.model, IMAGE, 3)
    steps = trial_steps(TrialSettings(config, IMAGE, 3, "float32"), model, 6)
    next(steps)
    with _Operations() as seen:
        for _ in range(4):  # MixUp and CutMix
            next(steps)
    assert "aten::_fused_adamw_" in seen.counts
    assert not seen.counts.keys() & WAITING
    assert torch.float64 not in seen.types
    with _Operations() as seen:
        torch.ones(1).double().item()
    assert seen.counts.keys() & WAITING
    assert torch.float64 in seen.types


def test_a_trial_step_does_what_a_step_of_the_loop_does(make: Make) -> None:
    """From the loading of the batch to the update: what is measured is what training takes."""
    job = make(augmentation={"name": "standard"})
    training = opened(job)
    model = build_model(job.config.model, job.image, len(job.classes))
    settings = TrialSettings(job.config, job.image, len(job.classes), "float32")
    steps = trial_steps(settings, model, 12)
    batches = training.batches()
    for _ in range(2):  # the first does more
        with _Operations() as of_loop:
            training.step.update(training.step.compute_gradients(next(batches)))
        with _Operations() as of_trial:
            next(steps)
    assert of_loop.counts["aten::stack"]  # loss and norm are checked
    assert of_trial.counts >= of_loop.counts


def test_few_images_stand_for_a_step_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update takes the same for any number of images, so a part counts a share of it."""
    update, seconds = TrainStep.update, 0.5

    def slow_update(step: TrainStep, gradients: Gradients) -> float:
        time.sleep(seconds)
        return update(step, gradients)

    monkeypatch.setattr(TrainStep, "update", slow_update)
    config = RunConfig.model_validate(EVERYTHING)
    settings = TrialSettings(config, IMAGE, 3, "float32")
    for planned, counted in ((0, 1.0), (4, 1.0), (60, 0.1)):
        steps = trial_steps(settings, build_model(config.model, IMAGE, 3), 6, planned=planned)
        next(steps)
        began = time.monotonic()
        step = next(steps)
        left_out = time.monotonic() - began - step
        assert left_out == pytest.approx((1 - counted) * seconds, rel=0.2, abs=0.1)


def test_smaller_images_count_as_what_they_cost() -> None:
    """Half the side for 60 % of the training: a convolution costs 55 % of the full size in all.

    A flip at test time does not count, and is there again afterwards.
    """
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.test_time_flip, cpu = True, torch.device("cpu")
    assert forward_flops(model, IMAGE, cpu) == 2 * 16 * 16 * 3 * 4
    assert model.test_time_flip
    config = TrainingConfig(initial_image_scale=0.5)
    share = ComputeShare(model, IMAGE, ProgressiveSize(config, IMAGE, model), cpu, "float32")
    always_full = share.at(1e6, 1e12)
    assert share.at(1e6, 0.25) == pytest.approx(always_full / 4)
    assert share.at(1e6, 1.0) == pytest.approx(always_full * 0.55)


def test_the_progress_shows_the_rate_of_the_last_seconds() -> None:
    """A busy moment is seen at once and forgotten after ten seconds; the mean would keep it."""
    rate = RecentRate()
    fast = [rate.add(float(second), 100 * second) for second in range(1, 21)]
    slow = [rate.add(20.0 + second, 2000 + 10 * second) for second in range(1, 13)]
    assert (fast[0], fast[-1], slow[-1]) == pytest.approx((100, 100, 10))
    assert rate.add(3.0, 30) == pytest.approx(10)  # training went back
