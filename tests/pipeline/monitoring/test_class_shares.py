"""Tests of `patchline.pipeline.monitoring.class_shares`."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.monitoring.class_shares import ClassShares, class_shares

CENTRES = np.array([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]])
BEFORE = np.array([0.5, 0.3, 0.2])


def outputs(features_ND: np.ndarray) -> np.ndarray:
    """Return the true posterior of normal classes with the shares of the reference."""
    squares = ((features_ND[:, None] - CENTRES) ** 2).sum(axis=2)
    weights = BEFORE * np.exp(-squares / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def drawn(shares: list[float], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and features."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(3, count, p=shares)
    return labels, CENTRES[labels] + generator.normal(size=(count, 3))


def compared(features_ND: np.ndarray, seed: int) -> ClassShares:
    """Compare images with a reference of 1,500."""
    labels, before_MD = drawn(BEFORE.tolist(), 1500, 1000 + seed)
    names = tuple(map(str, range(1500)))
    reference = ReferenceImages(
        probabilities_MK=outputs(before_MD),
        features_MD=before_MD,
        labels=labels,
        is_test_M=np.ones(1500, bool),
        sha256=names,
        paths=names,
    )
    return class_shares(reference, outputs(features_ND), features_ND, ("a", "b", "c"), seed=seed)


def test_new_shares_alone_are_told_from_changed_images() -> None:
    """The shares are estimated, and the test within classes holds its level."""
    results = [compared(drawn([0.2, 0.2, 0.6], 200, seed)[1], seed) for seed in range(30)]
    assert sum(bool(each.explains) for each in results) >= 26
    one = results[0]
    assert one.changes[0].label == "c"
    assert np.mean([each.changes[0].now for each in results]) == pytest.approx(0.6, abs=0.05)
    assert one.changes[0].before == pytest.approx(0.2, abs=0.05)
    assert one.sentence().startswith("The shares of the classes changed (c ")
    for seed in range(10):
        moved = compared(drawn([0.2, 0.2, 0.6], 200, seed)[1] + 1, seed)
        assert moved.explains is False
        assert moved.sentence().startswith("The images within the classes changed")


def test_too_few_reference_images_of_the_classes_leave_it_unknown() -> None:
    """What cannot be compared is not said to be unchanged."""
    labels, before_MD = drawn([0.98, 0.01, 0.01], 300, 0)
    names = tuple(map(str, range(300)))
    reference = ReferenceImages(
        outputs(before_MD), before_MD, labels, np.ones(300, bool), names, names
    )
    now_ND = drawn([0, 0, 1], 100, 1)[1]
    result = class_shares(reference, outputs(now_ND), now_ND, ("a", "b", "c"), seed=0)
    assert result.explains is None
    assert "is not known" in result.sentence()
