"""The learning rate: linear warm-up, then a cosine to zero (arXiv 1608.03983, without restarts).

Each step uses the rate at its middle, so no step has the rate 0 of the start and the end.
"""

from __future__ import annotations

import math


def learning_rate_factor(progress: float, warmup_fraction: float) -> float:
    """Return the fraction of the peak learning rate at a progress from 0 (start) to 1 (end)."""
    if progress < warmup_fraction:
        return progress / warmup_fraction
    falling = (progress - warmup_fraction) / (1 - warmup_fraction)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, falling)))
