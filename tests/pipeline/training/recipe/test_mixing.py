"""MixUp and CutMix: torchvision's results, drawn from the seed and the step alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.mixing import (
    Mix,
    dominant_labels,
    draw_mix,
    mixed_images,
    mixed_targets,
)

CLASSES, SIDE = 5, 16
LABELS_B = torch.tensor([0, 3, 1, 4, 4, 2])


def _images() -> torch.Tensor:
    return torch.randn(len(LABELS_B), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def _drawn(step: int, seed: int = 0, **alphas: float) -> Mix:
    mix = draw_mix(TrainingConfig.model_validate(alphas), seed, step, SIDE, SIDE)
    assert mix is not None
    return mix


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_images_and_targets_are_those_of_torchvision(name: str, step: int) -> None:
    """With the same ratio and box, images and targets agree to 1e-6."""
    mix = _drawn(step, mixup=float(name == "mixup"), cutmix=float(name == "cutmix"))
    params: dict[str, Any] = {"labels": LABELS_B, "batch_size": len(LABELS_B)}
    theirs: Any
    if mix.box is None:
        theirs, params["lam"] = v2.MixUp(num_classes=CLASSES), mix.share
    else:
        top, left, bottom, right = mix.box
        theirs = v2.CutMix(num_classes=CLASSES)
        params |= {"box": (left, top, right, bottom), "lam_adjusted": mix.share}
    images, expected = _images(), theirs.transform(_images(), params)
    assert torch.allclose(mixed_images(images, mix), expected, rtol=0, atol=1e-6)
    assert torch.equal(images, _images()), "the input is not modified"
    targets = mixed_targets(LABELS_B, CLASSES, mix)
    assert torch.allclose(targets, theirs.transform(LABELS_B, params), rtol=0, atol=1e-6)


def test_the_share_of_cutmix_is_that_of_the_pixels() -> None:
    """The target's share equals the fraction of pixels that an image keeps, at the border too."""
    before = torch.arange(6.0)[:, None, None, None].expand(6, 1, SIDE, SIDE)
    for step in range(50):
        mix = _drawn(step, cutmix=1.0)
        kept = float((mixed_images(before, mix)[0] == 0).float().mean())
        assert mix.share == pytest.approx(kept, abs=1e-6)


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    """The same seed and step repeat the draw; others give another one."""
    assert _drawn(7, mixup=0.4) == _drawn(7, mixup=0.4)
    draws = {_drawn(step, seed, mixup=0.4) for step in range(10) for seed in range(3)}
    assert len(draws) == 30


def test_ratios_follow_the_beta_distribution() -> None:
    """Mean and variance of the ratio are those of Beta(alpha, alpha)."""
    shares = np.array([_drawn(step, mixup=0.2).share for step in range(2000)])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * 1.4), abs=0.02)


def test_both_share_the_batches() -> None:
    """With both on, about half of the batches get each; with none, no batch is mixed."""
    cut = [_drawn(step, mixup=1.0, cutmix=1.0).box is not None for step in range(400)]
    assert 160 < sum(cut) < 240
    assert draw_mix(TrainingConfig(), 0, 0, SIDE, SIDE) is None


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_the_dominant_label_is_that_of_the_larger_share(share: float) -> None:
    """Accuracy is counted against the class with the highest target."""
    targets = mixed_targets(LABELS_B, CLASSES, Mix(share))
    assert torch.equal(dominant_labels(LABELS_B, Mix(share)), targets.argmax(1))
