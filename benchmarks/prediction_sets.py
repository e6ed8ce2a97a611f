"""Measure how far prediction sets keep their promise where validation images chose the model.

    python -m benchmarks.prediction_sets [--draws 300]

Split conformal prediction wants images that played no part in the model. Here they choose one of 20
checkpoints by their accuracy, fit its temperature, and then give the threshold, as in a run. Truth
is known: labels are drawn from a distribution that each checkpoint sees with noise of its own, and
the coverage of each draw's sets is measured on 20,000 new images.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from patchline.pipeline.metrics.classification import softmax
from patchline.pipeline.metrics.conformal import conformal_threshold, set_members
from patchline.pipeline.metrics.temperature import fit_temperature

Array = np.ndarray[Any, Any]
_CHECKPOINTS, _CLASSES, _NEW = 20, 10, 20_000
_SIZES, _COVERAGES = (50, 100, 300, 1000), (0.9, 0.95, 0.99)


def main() -> None:
    """Print the mean coverage for several numbers of validation images."""
    parser = argparse.ArgumentParser(description="Coverage of prediction sets with known truth.")
    parser.add_argument("--draws", type=int, default=300)
    draws = parser.parse_args().draws
    generator = np.random.default_rng(0)
    new = _images(_NEW, generator)
    print("images | " + " | ".join(f"{each:.0%} promised" for each in _COVERAGES))
    for size in _SIZES:
        chosen = np.zeros((draws, len(_COVERAGES)))
        fixed = np.zeros_like(chosen)
        for draw in range(draws):
            held = _images(size, generator)
            best = int(np.argmax([(each.argmax(1) == held[1]).mean() for each in held[0]]))
            temperature = fit_temperature(held[0][best].astype(np.float32), held[1]).temperature
            chosen[draw] = _coverages(held, new, best, temperature)
            fixed[draw] = _coverages(held, new, 0, 1.0)
        for words, measured in (("chosen", chosen), ("fixed", fixed)):
            means = measured.mean(0)
            errors = measured.std(0) / np.sqrt(draws)
            cells = [f"{m:.2%} ± {2 * e:.2%}" for m, e in zip(means, errors, strict=True)]
            print(f"{size} {words} | " + " | ".join(cells))


def _images(count: int, generator: np.random.Generator) -> tuple[list[Array], Array]:
    """Return the logits (N, K) of each checkpoint, and the labels (N)."""
    truth_NK = 2 * generator.standard_normal((count, _CLASSES))
    drawn_NK = truth_NK + generator.gumbel(size=truth_NK.shape)
    shared_NK = generator.standard_normal(truth_NK.shape)
    logits = [
        2 * (truth_NK + 0.7 * shared_NK + 0.7 * generator.standard_normal(truth_NK.shape))
        for _ in range(_CHECKPOINTS)
    ]
    return logits, drawn_NK.argmax(1)


def _coverages(
    held: tuple[list[Array], Array],
    new: tuple[list[Array], Array],
    checkpoint: int,
    temperature: float,
) -> list[float]:
    """Return how often sets of a checkpoint hold the true class of new images, by coverage."""
    own_N = _probabilities(held, checkpoint, temperature)[np.arange(len(held[1])), held[1]]
    new_NK = _probabilities(new, checkpoint, temperature)
    measured = []
    for coverage in _COVERAGES:
        threshold = conformal_threshold(1 - own_N, coverage)
        least = 0.0 if threshold is None else 1 - threshold
        inside_NK = set_members(new_NK, least)
        measured.append(float(inside_NK[np.arange(_NEW), new[1]].mean()))
    return measured


def _probabilities(images: tuple[list[Array], Array], checkpoint: int, temperature: float) -> Array:
    return softmax(images[0][checkpoint], temperature)


if __name__ == "__main__":
    main()
