"""The paired test of two multi-label classifiers finds real differences and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from patchline.pipeline.evaluation.metrics.intervals import ImageGroups
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    PAIRED,
    ThresholdedScores,
    compare_metrics,
)
from patchline.pipeline.evaluation.metrics.paired_test import is_better

Array = np.ndarray[Any, Any]


def _models(
    images: int, *, gain: float, seed: int
) -> tuple[Array, ThresholdedScores, ThresholdedScores]:
    """Return labels, and two models with errors in common, of which the second may be better."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((images, 5)) < 0.2).astype(np.uint8)
    common = generator.normal(size=labels.shape)
    answers = []
    for skill in (1.5, 1.5 + gain):
        own = generator.normal(size=labels.shape)
        scores = 1 / (1 + np.exp(-(skill * labels + 0.7 * common + 0.7 * own - 1)))
        answers.append(ThresholdedScores(scores, (scores >= 0.5).astype(np.uint8)))
    return labels, answers[0], answers[1]


def test_values_are_those_of_scikit_learn() -> None:
    """And their difference lies in its interval."""
    labels, a, b = _models(300, gain=0.5, seed=1)
    found = compare_metrics(labels, a, b)
    for model, answers in (("a", a), ("b", b)):
        score = average_precision_score(labels, answers.probabilities_NK)
        assert getattr(found["mAP"], model) == pytest.approx(score, abs=1e-9)
        f1 = f1_score(labels, answers.predicted_NK, average="macro")
        assert getattr(found["macro_f1"], model) == pytest.approx(f1, abs=1e-9)
    for pair in found.values():
        assert pair.difference.value == pytest.approx(pair.b - pair.a, abs=1e-12)
        assert pair.difference.low <= pair.difference.value <= pair.difference.high


def test_a_better_model_is_found_and_a_worse_one_is_not_better() -> None:
    """In either order."""
    labels, a, b = _models(600, gain=1.0, seed=2)
    for name in PAIRED:
        assert is_better(compare_metrics(labels, a, b)[name])
        back = compare_metrics(labels, b, a)[name]
        assert back.p_value < 0.05
        assert not is_better(back)


def test_equal_models_seldom_pass() -> None:
    """At most 5% of the time, in 80 pairs: the test's own level is 2.5% on this side."""
    passed = []
    for seed in range(80):
        labels, a, b = _models(80, gain=0.0, seed=seed)
        found = compare_metrics(labels, a, b, draws=200)
        passed.append([is_better(found[name]) for name in PAIRED])
    assert (np.mean(passed, axis=0) <= 0.06).all()


def test_a_model_is_not_better_than_itself() -> None:
    """Nor than another without images, or without labels."""
    labels, a, _ = _models(50, gain=0.0, seed=3)
    same = compare_metrics(labels, a, a)["mAP"]
    assert (same.difference.value, same.p_value) == (0.0, 1.0)
    assert not is_better(same)
    none = compare_metrics(
        labels[:0], ThresholdedScores(a[0][:0], a[1][:0]), ThresholdedScores(a[0][:0], a[1][:0])
    )
    assert (none["mAP"].difference.low, none["mAP"].p_value) == (-1.0, 1.0)
    assert compare_metrics(np.zeros_like(labels), a, a)["macro_f1"].p_value == 1.0


def test_the_same_seed_gives_the_same_decision() -> None:
    """A promotion can be repeated."""
    labels, a, b = _models(100, gain=0.3, seed=4)
    assert compare_metrics(labels, a, b) == compare_metrics(labels, a, b)


def test_images_of_a_group_are_drawn_together() -> None:
    """Ten copies of each image say no more than one; taken as independent, they seem to."""
    labels, a, b = _models(60, gain=0.35, seed=0)
    copies = np.repeat(np.arange(60), 10)
    many = [ThresholdedScores(each[0][copies], each[1][copies]) for each in (a, b)]
    once = compare_metrics(labels, a, b)
    free = compare_metrics(labels[copies], *many)
    grouped = compare_metrics(labels[copies], *many, groups=ImageGroups.of(copies))
    for name in PAIRED:
        assert grouped[name].groups == 60
        assert grouped[name].difference.value == pytest.approx(once[name].difference.value)
        own, alone, wide = (each[name].difference for each in (grouped, free, once))
        assert own.high - own.low == pytest.approx(wide.high - wide.low, rel=0.15)
        assert alone.high - alone.low < 0.5 * (wide.high - wide.low)
        assert grouped[name].p_value > 10 * free[name].p_value
    one = compare_metrics(labels, a, b, groups=ImageGroups.of([0] * 60))["mAP"]
    assert (one.p_value, one.difference.low, one.difference.high) == (1.0, -1.0, 1.0)
