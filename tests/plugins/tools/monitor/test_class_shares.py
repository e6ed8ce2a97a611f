"""Tests of `patchline.plugins.tools.monitor.drift_tests`."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.plugins.tools.monitor.drift_tests import ClassShares, class_shares
from tests.plugins.tools.monitor.reference import reference_of

CENTRES = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]])
BEFORE = [0.5, 0.3, 0.2]


def outputs(features_ND: np.ndarray) -> np.ndarray:
    """Return the true posterior of normal classes with the shares of the reference."""
    squares = ((features_ND[:, None] - CENTRES) ** 2).sum(axis=2)
    weights = np.array(BEFORE) * np.exp(-squares / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def drawn(shares: list[float], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and features."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, count, p=shares)
    return labels, CENTRES[labels] + generator.normal(size=(count, 3))


def compared(
    now_ND: np.ndarray, seed: int, shares: list[float] = BEFORE, images: int = 1500
) -> ClassShares:
    """Compare images with a reference of such shares."""
    labels, before_MD = drawn(shares, images, 1000 + seed)
    reference = reference_of(outputs(before_MD), before_MD, labels)
    return class_shares(reference, outputs(now_ND), now_ND, ("a", "b", "c"), seed=seed)


def test_new_shares_alone_are_told_from_changed_images() -> None:
    """The shares are estimated, and the test within classes holds its level."""
    images = [drawn([0.2, 0.2, 0.6], 200, seed)[1] for seed in range(15)]
    results = [compared(each, seed) for seed, each in enumerate(images)]
    assert sum(bool(each.explains) for each in results) >= 13
    first = results[0].changes[0]
    assert first.label == "c"
    assert first.before == pytest.approx(0.2, abs=0.05)
    assert np.mean([each.changes[0].now for each in results]) == pytest.approx(0.6, abs=0.05)
    assert results[0].sentence().startswith("The shares of the classes changed (c ")
    for seed in range(5):
        moved = compared(images[seed] + 1, seed)
        assert moved.explains is False
        assert moved.sentence().startswith("The images within the classes changed")


def test_too_few_reference_images_of_the_classes_leave_it_unknown() -> None:
    """What cannot be compared is not said to be unchanged."""
    result = compared(drawn([0, 0, 1], 100, 1)[1], 0, [0.98, 0.01, 0.01], 300)
    assert result.explains is None
    assert "is not known" in result.sentence()
