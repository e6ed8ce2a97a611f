"""The learning rate: a linear warm-up, then one of four named schedules.

Each step uses the rate at its middle, so no step has the rate 0 of the start and the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from patchline.pipeline.training.config import OptimizerConfig

Fall = Callable[[float], float]
"""From the fraction of the time after the warm-up to the fraction of the peak rate."""


def _cosine(_decay: float) -> Fall:
    """A half cosine to zero (arXiv 1608.03983, without restarts)."""
    return lambda done: 0.5 * (1 + math.cos(math.pi * done))


def _linear(_decay: float) -> Fall:
    """A straight line to zero (arXiv 2310.07831)."""
    return lambda done: 1 - done


def _wsd(decay: float) -> Fall:
    """Warm-up, stable, decay: constant, then a straight line to zero (arXiv 2405.18392)."""
    return lambda done: min(1.0, (1 - done) / decay)


def _constant(_decay: float) -> Fall:
    """The peak rate to the end."""
    return lambda _: 1.0


SCHEDULES: dict[str, Callable[[float], Fall]] = {
    "cosine": _cosine,
    "linear": _linear,
    "wsd": _wsd,
    "constant": _constant,
}
"""What follows the warm-up, by the names that `OptimizerConfig.schedule` accepts."""


def learning_rate_factor(
    progress: float, warmup_fraction: float, schedule: str = "cosine", decay_fraction: float = 0.2
) -> float:
    """Return the fraction of the peak learning rate at a progress from 0 (start) to 1 (end).

    Args:
        progress: of the training.
        warmup_fraction: fraction of the training with a linearly rising rate.
        schedule: what follows, a key of `SCHEDULES`.
        decay_fraction: of `wsd`: fraction of the training with a falling rate, at the end.
    """
    if progress < warmup_fraction:
        return progress / warmup_fraction
    after_warmup = 1 - warmup_fraction
    done = min(1.0, (progress - warmup_fraction) / after_warmup)
    return SCHEDULES[schedule](min(1.0, decay_fraction / after_warmup))(done)


def learning_rate(config: OptimizerConfig, progress: float) -> float:
    """Return the learning rate of an optimizer at a progress from 0 to 1."""
    return config.learning_rate * learning_rate_factor(
        progress, config.warmup_fraction, config.schedule, config.decay_fraction
    )
