"""Classifiers to compute figures of: probabilities and labels drawn by a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from patchline.pipeline.evaluation.metrics.classification import softmax

Array = np.ndarray[Any, Any]


def sample(n: int, num_classes: int, *, seed: int = 0, skill: float = 1.5) -> tuple[Array, Array]:
    """Return logits (N, K) of a classifier with some skill, and the labels (N)."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, n)
    logits = generator.normal(size=(n, num_classes))
    logits[np.arange(n), labels] += skill
    return logits.astype(np.float32), labels


def calibrated(
    n: int, num_classes: int, *, seed: int = 0, skill: float = 1.5
) -> tuple[Array, Array]:
    """Return probabilities (N, K), which are the exact posterior, and the labels (N)."""
    logits, labels = sample(n, num_classes, seed=seed, skill=skill)
    return softmax(logits * skill), labels


classifiers = st.builds(
    sample,
    n=st.integers(1, 60),
    num_classes=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    skill=st.floats(0, 4),
)
predictions = st.builds(
    calibrated,
    n=st.integers(1, 60),
    num_classes=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    skill=st.floats(0, 4),
)
