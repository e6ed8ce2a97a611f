"""The temperature is fitted where images determine it, and stays 1 where they cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.metrics.losses import log_losses
from patchline.pipeline.evaluation.metrics.temperature import (
    TemperatureFit,
    by_member,
    fit_temperature,
)
from tests.pipeline.evaluation.metrics.classifiers import Array, sample


def _draw(
    images: int, classes: int, temperature: float, *, seed: int, skill: float = 2.0
) -> tuple[Array, Array]:
    """Return logits whose right temperature is known, and labels."""
    logits, labels = sample(images, classes, seed=seed, skill=skill)
    return temperature * skill * logits, labels


def _loss(logits: Array, labels: Array, temperature: float) -> float:
    return float(log_losses(softmax(logits, temperature), labels).mean())


@pytest.mark.parametrize(
    ("temperature", "words"),
    [(0.25, "was underconfident"), (1.0, "was well calibrated"), (2.5, "was overconfident")],
)
def test_the_hidden_temperature_is_found(temperature: float, words: str) -> None:
    """With many images, T is that of the labels, and the prior changes nothing."""
    fit = fit_temperature(*_draw(4000, 5, temperature, seed=1))
    assert fit.temperature == pytest.approx(temperature, rel=0.08)
    assert fit.state == "fitted"
    assert fit.is_determined
    assert words in fit.before()


@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(0.5, 3), st.floats(0.4, 3))
def test_the_interval_is_that_of_the_likelihood(seed: int, skill: float, hidden: float) -> None:
    """Inside, no temperature is much less likely than the best one; outside, every one is."""
    logits, labels = _draw(150, 4, hidden, seed=seed, skill=skill)
    fit = fit_temperature(logits, labels)
    tried = np.geomspace(0.05, 20, 300)
    drops = 150 * np.array([_loss(logits, labels, float(each)) for each in tried])
    drops -= drops.min()
    inside = (tried >= (fit.low or 0)) & (tried <= (fit.high or np.inf))
    assert (drops[inside] < 1.95).all()
    assert (drops[~inside] > 1.88).all()


@pytest.mark.parametrize("images", [1, 58])
def test_faultless_validation_images_fit_nothing(images: int) -> None:
    """All right: the likelihood is flat towards 0, so T stays 1 and the reason is said."""
    labels = np.arange(images) % 10
    fit = fit_temperature(9 * np.eye(10)[labels], labels)
    assert (fit.state, fit.temperature, fit.low) == ("not fitted", 1.0, None)
    assert not fit.is_determined
    if images > 2:
        assert f"all {images} validation images are classified correctly" in fit.sentence()


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        (np.empty((0, 3)), np.empty(0, int), "there is no validation image"),
        (np.eye(3)[[0, 0, 1, 2]] * 5, np.zeros(4, int), "are of one class"),
        (np.zeros((9, 1)), np.zeros(9, int), "any temperature from 0.05 to 20"),
        (np.eye(3)[[0, 1, 2]] * 1e30, np.arange(3), "any temperature from 0.05 to 20"),
    ],
    ids=["no image", "one class", "a single class", "huge logits"],
)
def test_what_cannot_be_told_is_not_fitted(logits: Array, labels: Array, words: str) -> None:
    """T stays 1 in every case where the labels say nothing of it."""
    fit = fit_temperature(logits, labels)
    assert (fit.state, fit.temperature) == ("not fitted", 1.0)
    assert words in fit.sentence()
    assert "do not show whether" in fit.before()


@pytest.mark.parametrize(("logit", "shift", "words"), [(6, 0, "underc"), (3, 1, "overc")])
def test_nothing_but_right_or_wrong_answers_are_uncertain(
    logit: float, shift: int, words: str
) -> None:
    """All right but hesitant is too many, all wrong too few; nothing says by how much."""
    labels = np.arange(400) % 10
    fit = fit_temperature(logit * np.eye(10)[labels], (labels + shift) % 10)
    assert fit.state == "uncertain"
    assert not fit.is_determined
    low, high = fit.low or 0, fit.high or np.inf
    assert (low == 0, high == np.inf) == (not shift, bool(shift))
    assert low <= fit.temperature <= high
    assert (fit.temperature > 1) == bool(shift)
    assert 0.4 < fit.temperature < 20  # the prior limits the confidence
    assert f"{words}onfident, but not by how much" in fit.sentence()
    assert f"{words}onfident" in fit.before()


def test_impossible_classes_and_broken_outputs() -> None:
    """Minus infinity is a class that cannot be; a true class that cannot be says nothing of T."""
    logits, labels = _draw(300, 4, 2.0, seed=3)
    masked = np.column_stack([logits, np.full(300, -np.inf)])
    masked[0, labels[0]] = -np.inf
    assert fit_temperature(masked, labels).temperature == pytest.approx(2, rel=0.2)
    for broken in (np.nan, np.inf):
        logits[7, 1] = broken
        with pytest.raises(RunError, match="for 1 of 300 validation images are not finite"):
            fit_temperature(logits, labels)


def test_members_of_an_ensemble_are_said_one_by_one() -> None:
    """The average has no temperature of its own; a member without one is named."""
    fitted = TemperatureFit(temperature=1.3, state="fitted", low=1.1, high=1.5, images=90)
    unfitted = fit_temperature(6 * np.eye(3)[[0, 1, 2]], np.arange(3))
    both, mixed = by_member((fitted, fitted)), by_member((fitted, unfitted))
    assert (both.is_determined, both.images, mixed.is_determined) == (True, 180, False)
    assert "fold 2: all 3 validation images are classified correctly" in mixed.sentence()


SHARES = (0.8, 0.14, 0.06)


def _draw_balanced(images: int, *, effect: float, seed: int) -> tuple[Array, Array]:
    """Return logits of T 1.5 that lack so much of the logarithm of the class shares, and labels."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, images, p=SHARES)
    scores = generator.normal(size=(images, 3))
    scores[np.arange(images), labels] += 2
    return 1.5 * (2 * scores + (1 - effect) * np.log(SHARES)), labels


@pytest.mark.parametrize("effect", [1.0, 0.0])
def test_a_bias_undoes_balanced_classes(effect: float) -> None:
    """However much the weights did, each class has its share on average; T alone is far off."""
    found, alone = [], []
    for seed in range(8):
        logits, labels = _draw_balanced(300, effect=effect, seed=seed)
        new, truth = _draw_balanced(5000, effect=effect, seed=100 + seed)
        fit = fit_temperature(logits, labels, class_images=(800, 140, 60))
        found.append(softmax(fit.logits(new)).mean(axis=0) / np.bincount(truth) * len(truth))
        temperature = fit_temperature(logits, labels).temperature
        alone.append(softmax(new, temperature).mean(axis=0) / np.bincount(truth) * len(truth))
    assert np.mean(found, axis=0) == pytest.approx(1, abs=0.12)
    assert np.mean(alone, axis=0)[2] > (2.0 if effect else 0.8)


def test_the_interval_counts_groups_not_images() -> None:
    """Copies of an image say no more than it does; a single group says nothing."""
    logits, labels = _draw(200, 4, 2.0, seed=5)
    alone = fit_temperature(logits, labels)
    copied = np.repeat(np.arange(200), 10)
    grouped = fit_temperature(logits[copied], labels[copied], groups=ImageGroups.of(copied))
    naive = fit_temperature(logits[copied], labels[copied])

    def width(fit: TemperatureFit) -> float:
        assert fit.low is not None
        assert fit.high is not None
        return float(np.log(fit.high / fit.low))

    assert width(grouped) == pytest.approx(width(alone), rel=0.15)
    assert width(naive) < 0.4 * width(alone)
    one = fit_temperature(logits, labels, groups=ImageGroups.of(["patient"] * 200))
    assert (one.state, one.temperature) == ("not fitted", 1.0)
    assert "of 1 group" in one.sentence()
