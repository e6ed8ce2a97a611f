"""The learning rate: a linear warm-up, then one of four named schedules.

Each step uses the rate at its middle, so no step has the rate 0 of the start and the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from patchline.pipeline.training.config import OptimizerConfig

_DECAY_FRACTION = 0.2
"""Fraction of training with a falling rate, at the end of `wsd` (arXiv 2405.18392, section 3)."""
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    # a half cosine to zero (arXiv 1608.03983, without restarts)
    "cosine": lambda done, _: 0.5 * (1 + math.cos(math.pi * done)),
    # a straight line to zero (arXiv 2310.07831)
    "linear": lambda done, _: 1 - done,
    # warm-up, stable, decay: constant, then a straight line to zero (arXiv 2405.18392)
    "wsd": lambda done, decay: min(1.0, (1 - done) / decay),
    # the peak rate to the end
    "constant": lambda _done, _decay: 1.0,
}
"""What follows the warm-up, by the names that `OptimizerConfig.schedule` accepts: the fraction of
the peak rate, given the fraction of the time after the warm-up, and that of the decay."""


def learning_rate_factor(
    progress: float, warmup_fraction: float, schedule: str = "cosine"
) -> float:
    """Return the fraction of the peak learning rate at a progress from 0 (start) to 1 (end).

    Args:
        progress: the progress of the training, from 0 to 1.
        warmup_fraction: fraction of the training with a linearly rising rate.
        schedule: what follows, a key of `SCHEDULES`.
    """
    if progress < warmup_fraction:
        return progress / warmup_fraction
    after_warmup = 1 - warmup_fraction
    done = min(1.0, (progress - warmup_fraction) / after_warmup)
    return SCHEDULES[schedule](done, min(1.0, _DECAY_FRACTION / after_warmup))


def learning_rate(config: OptimizerConfig, progress: float) -> float:
    """Return the learning rate of an optimizer at a progress from 0 to 1."""
    return config.learning_rate * learning_rate_factor(
        progress, config.warmup_fraction, config.schedule
    )
