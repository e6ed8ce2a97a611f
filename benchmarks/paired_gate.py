"""How often the paired promotion gate promotes an equally good model, and a better one.

python -m benchmarks.paired_gate
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.measured_runs import machine
from pipeline.metrics.paired_test import is_better, paired_difference

Array = np.ndarray[Any, Any]
TRIALS = 200
SIMULATIONS = 1000
EQUAL = ((0.7, 0.3), (0.9, 0.15), (0.9, 0.05), (0.97, 0.05), (0.99, 0.01))
"""Accuracy of both models, and the share of images on which just one of them is right."""


def answers(
    generator: np.random.Generator, images: int, *, accuracy: float, gain: float, discordant: float
) -> tuple[Array, Array]:
    """Return which images model a, of that accuracy, and model b, better by `gain`, get right."""
    only_b, only_a = (discordant + gain) / 2, (discordant - gain) / 2
    both = accuracy - only_a
    kind = generator.choice(4, images, p=(both, only_a, only_b, 1 - both - only_a - only_b))
    return np.isin(kind, (0, 1)), np.isin(kind, (0, 2))


def promoted(images: int, *, accuracy: float, gain: float, discordant: float, seed: int) -> int:
    """Return in how many of the trials b passes the gate."""
    generator = np.random.default_rng(seed)
    return sum(
        is_better(
            paired_difference(
                *answers(generator, images, accuracy=accuracy, gain=gain, discordant=discordant)
            )
        )
        for _ in range(TRIALS)
    )


def coverage(images: int, *, accuracy: float, gain: float, discordant: float) -> float:
    """Return the share of simulations whose interval holds the true gain."""
    generator = np.random.default_rng(images)
    held = 0
    for _ in range(SIMULATIONS):
        pair = answers(generator, images, accuracy=accuracy, gain=gain, discordant=discordant)
        estimate = paired_difference(*pair).difference
        held += estimate.low <= gain <= estimate.high
    return held / SIMULATIONS


def main() -> None:
    """Print both shares, and how often the interval of the difference holds the true one."""
    print(machine())
    print(f"equal models, promoted of {TRIALS} trials (17 at most):")
    for images in (200, 2000):
        for seed, (accuracy, discordant) in enumerate(EQUAL):
            count = promoted(images, accuracy=accuracy, gain=0.0, discordant=discordant, seed=seed)
            print(f"  n = {images:,}, accuracy {accuracy}, discordant {discordant}: {count}")
    count = promoted(2000, accuracy=0.85, gain=0.03, discordant=0.15, seed=0)
    print(
        f"better by 3 points, n = 2,000, discordant 0.15: promoted {count} of {TRIALS} "
        f"= {count / TRIALS:.0%} (80% at least)"
    )
    print(f"interval of the difference, {SIMULATIONS:,} simulations each:")
    for images in (20, 100, 1000):
        found = [
            coverage(images, accuracy=accuracy, gain=gain, discordant=discordant)
            for accuracy, gain, discordant in (
                *((accuracy, 0.0, discordant) for accuracy, discordant in EQUAL),
                (0.85, 0.03, 0.15),
                (0.6, 0.2, 0.3),
                (0.94, 0.05, 0.06),
            )
        ]
        print(f"  n = {images:,}: mean coverage {np.mean(found):.1%}, lowest {min(found):.1%}")


if __name__ == "__main__":
    main()
