"""The point between a fitted head and trained weights that is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.training.parts.fine_tuning import (
    SHARES,
    WITHOUT_CHOICE,
    between,
    choose_share,
    logits_along,
)
from patchline.plugin_api import ImageSpec

Array = np.ndarray[Any, Any]


def classifiers(random: np.random.Generator, images: int, gains: Array) -> tuple[Array, Array]:
    """Return logits (S, N, K) of classifiers that differ in accuracy by the gains, and labels.

    All see the same evidence of each image with the same noise, some a little more clearly.
    """
    labels_N = random.integers(0, 10, images)
    noise_NK = random.normal(size=(images, 10))
    own_SNK = 0.35 * random.normal(size=(len(gains), images, 10))
    truth_NK = np.eye(10)[labels_N]
    return np.stack(
        [
            (2.2 + 6 * gain) * truth_NK + noise_NK + own_NK
            for gain, own_NK in zip(gains, own_SNK, strict=True)
        ]
    ), labels_N


def test_counters_are_those_of_the_trained_end() -> None:
    """Floating-point numbers lie on the line."""
    ends = [
        {"w": torch.tensor(w), "steps": torch.tensor(steps)} for w, steps in ((0.0, 3), (2.0, 7))
    ]
    found = between(ends[0], ends[1], 0.25)
    assert (float(found["w"]), int(found["steps"])) == (0.5, 7)


def test_logits_are_those_of_each_point() -> None:
    """A linear model is linear in its weights; it has the trained ones afterwards."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    ends = [{name: torch.randn_like(each) for name, each in model.state_dict().items()}
            for _ in range(2)]  # fmt: skip
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 2, 1), dtype=np.uint8)
    image = ImageSpec(channels=1, height=2, width=2, mean=(0.5,), std=(0.5,), resize="crop")
    logits_SNK = logits_along(model, ends[0], ends[1], images, np.arange(4), image)
    for place, share in enumerate(SHARES):
        expected = (1 - share) * logits_SNK[0] + share * logits_SNK[-1]
        np.testing.assert_allclose(logits_SNK[place], expected, atol=1e-5)
    assert torch.equal(model.state_dict()["1.weight"], ends[1]["1.weight"])


def test_overconfidence_alone_decides_nothing() -> None:
    """The same decisions with larger logits are as good: a temperature undoes it."""
    random = np.random.default_rng(0)
    logits_NK, labels_N = random.normal(size=(200, 3)), random.integers(0, 3, 200)
    logits_NK[np.arange(200), labels_N] += 1.5
    logits_SNK = np.stack([logits_NK * (1 + 2 * share) for share in SHARES])
    losses = [each.loss for each in choose_share(logits_SNK, labels_N).tried]
    assert max(losses) - min(losses) < 0.01


@pytest.mark.parametrize("images", [0, 1])
def test_without_images_the_middle_is_kept(images: int) -> None:
    """The record says that nothing was compared."""
    record = choose_share(np.zeros((len(SHARES), images, 3)), np.zeros(images, np.int64))
    assert record.share == WITHOUT_CHOICE
    assert "no image was left" in record.sentence()


def test_gains_are_kept_and_losses_avoided_with_few_images() -> None:
    """With 70 images, a gain of 4 points is mostly kept, and one that turns into a loss is not.

    A significance test keeps a gain of 4 points in 9% of cases with 70 images.
    """
    random = np.random.default_rng(1)
    gains = {
        "rising": np.array([0.0, 0.02, 0.03, 0.037, 0.04]),
        "falling": np.array([0.0, -0.01, -0.03, -0.06, -0.1]),
        "peaked": np.array([0.0, 0.03, 0.04, 0.01, -0.05]),
    }
    mean = {}
    for name, gain_S in gains.items():
        chosen = [choose_share(*classifiers(random, 70, gain_S)).share for _ in range(30)]
        mean[name] = float(np.mean([gain_S[SHARES.index(share)] for share in chosen]))
    assert mean["rising"] > 0.025
    assert mean["falling"] > -0.01
    assert mean["peaked"] > 0.02


@pytest.mark.parametrize(
    ("images", "gain_of_end", "share"), [(80, 0.0, 0.75), (400, 0.0, 1.0), (80, 1.0, 1.0)]
)
def test_few_images_keep_the_trained_end_only_if_it_is_better(
    images: int, gain_of_end: float, share: float
) -> None:
    """Where all points are alike, the last one before the end is kept; many images keep the end."""
    gains = np.array([0, 0, 0, 0, gain_of_end])
    random = np.random.default_rng(0)
    logits_SNK, labels_N = classifiers(random, images, gains)
    logits_SNK[:4] = logits_SNK[0]
    if not gain_of_end:
        logits_SNK[4] = logits_SNK[0]
    assert choose_share(logits_SNK, labels_N).share == share
