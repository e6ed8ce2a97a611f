"""How often 95% intervals hold the truth where few samples decide.

    python -m benchmarks.few_samples map [SIMULATIONS]
    python -m benchmarks.few_samples groups [SIMULATIONS]
    python -m benchmarks.few_samples gain [SIMULATIONS]

`map` draws images whose labels have few positives each, with normal scores that are higher by
`skill` for a positive (200 simulations a cell unless given). The true value is that of 400,000
images; with groups, images of a group share half of the noise, and labels.

`groups` draws groups of images, ten on average and of very different sizes, whose error rates
differ, so that most errors are in few groups, and takes the interval of the accuracy (500).

`gain` draws two settings that are equally good, each with a few seeds, on the same images, and
takes the interval of the gain of one over the other (1,000). A seed moves all of its scores.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measured_runs import machine
from patchline.pipeline.evaluation.metrics.intervals import ImageGroups, MetricEstimate, share
from patchline.pipeline.evaluation.metrics.mean_average_precision import (
    find_ranked_labels,
    mean_average_precision,
)
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import label_set_map
from patchline.plugins.tools.sweep.final_fits import gain_of_shares

Array = np.ndarray[Any, Any]
Generator = np.random.Generator


class Held(NamedTuple):
    """What the intervals of one setting say of a true value."""

    covered: float
    too_high: float
    """Share of the intervals that are above the true value."""
    too_low: float
    width: float
    excess: float
    """Mean of the value minus the true one."""


def count_held(estimates: Sequence[MetricEstimate], truth: float) -> Held:
    """Count the intervals that hold the true value."""
    low, high, value = (
        np.array([getattr(each, key) for each in estimates]) for key in ("low", "high", "value")
    )
    above, below = low > truth + 1e-12, high < truth - 1e-12
    return Held(
        float(1 - np.mean(above | below)),
        float(above.mean()),
        float(below.mean()),
        float((high - low).mean()),
        float(value.mean() - truth),
    )


_SKILLS = (0.5, 1.5, 2.5, 4.0)
_MAPS = (
    (50, 1, 0.06, False),
    (50, 6, 0.06, False),
    (100, 6, 0.01, False),
    (100, 10, 0.05, False),
    (300, 20, 0.01, False),
    (200, 20, 0.03, False),
    (100, 6, 0.05, True),
    (1000, 6, 0.1, False),
)
"""Images, labels, share of the images with each, and whether five images each form a group."""
_MANY, _OF_GROUP = 400_000, 5


def draw_labelled(
    generator: Generator, images: int, labels: int, of_label: float, *, grouped: bool, skill: float
) -> tuple[Array, Array]:
    """Return scores (N, K) and labels (N, K)."""
    each = _OF_GROUP if grouped else 1
    codes = np.arange(images) // each
    groups = int(codes[-1]) + 1
    inherits = generator.random((images, labels)) < (0.5 if grouped else 0.0)
    own = generator.random((images, labels)) < of_label
    sets = np.where(inherits, (generator.random((groups, labels)) < of_label)[codes], own)
    noise = generator.normal(size=(groups, labels))[codes] * math.sqrt(0.5)
    noise += generator.normal(size=(images, labels)) * math.sqrt(0.5)
    return skill * sets + noise, sets.astype(np.uint8)


def map_held(row: tuple[int, int, float, bool], skill: float, simulations: int) -> Held:
    """Draw test images and return what the intervals of mAP hold."""
    images, labels, of_label, grouped = row
    generator = np.random.default_rng(5)
    many = draw_labelled(generator, _MANY, 1, of_label, grouped=grouped, skill=skill)
    truth = mean_average_precision(*many).value or 0.0
    groups = ImageGroups.of(np.arange(images) // _OF_GROUP) if grouped else None
    found = []
    for seed in range(simulations):
        scores, sets = draw_labelled(
            generator, images, labels, of_label, grouped=grouped, skill=skill
        )
        if find_ranked_labels(sets).any():
            found.append(label_set_map(scores, sets, groups=groups, seed=seed))
    return count_held(found, truth)


def print_maps(simulations: int) -> None:
    """Print the coverage of mAP by the number of positives and the skill."""
    print(f"{simulations} simulations a cell: held, mean excess of the value, mean width")
    print(f"| images | labels | positives each | {' | '.join(f'skill {s:g}' for s in _SKILLS)} |")
    print("|---" * (3 + len(_SKILLS)) + "|")
    for row in _MAPS:
        cells = [map_held(row, skill, simulations) for skill in _SKILLS]
        texts = [f"{c.covered:.1%}, {c.excess:+.3f}, {c.width:.3f}" for c in cells]
        name = f"{row[0]:,}" + (f", groups of {_OF_GROUP}" if row[3] else "")
        print(f"| {name} | {row[1]} | {row[0] * row[2]:g} | {' | '.join(texts)} |", flush=True)


def _alike(rate: float) -> Callable[[Generator, int], Array]:
    return lambda _, groups: np.full(groups, rate)


def _build_varying_draw(mean: float, correlation: float) -> Callable[[Generator, int], Array]:
    scale = 1 / correlation - 1
    return lambda draw, groups: draw.beta(mean * scale, (1 - mean) * scale, groups)


def _two_kinds(bad: float, rate: float, others: float) -> Callable[[Generator, int], Array]:
    return lambda draw, groups: np.where(draw.random(groups) < bad, rate, others)


_RATES: dict[str, tuple[float, Callable[[Generator, int], Array]]] = {
    "10% in all": (0.1, _alike(0.1)),
    "1% in all": (0.01, _alike(0.01)),
    "10%, correlation 0.1": (0.1, _build_varying_draw(0.1, 0.1)),
    "10%, correlation 0.3": (0.1, _build_varying_draw(0.1, 0.3)),
    "10%, correlation 0.6": (0.1, _build_varying_draw(0.1, 0.6)),
    "3%, correlation 0.3": (0.03, _build_varying_draw(0.03, 0.3)),
    "50% in a tenth, else none": (0.05, _two_kinds(0.1, 0.5, 0.0)),
    "60% in a tenth, else 2%": (0.078, _two_kinds(0.1, 0.6, 0.02)),
    "all in one of 50, else 1%": (0.0298, _two_kinds(0.02, 1.0, 0.01)),
}
"""Mean error rate, and that of each group."""
_GROUPS = (5, 10, 20, 40, 100)
_MEAN_SIZE = 10


def groups_held(name: str, groups: int, simulations: int) -> Held:
    """Draw groups of images and return what the intervals of the accuracy hold."""
    generator = np.random.default_rng(3)
    mean, rates = _RATES[name]
    found = []
    for _ in range(simulations):
        codes = np.repeat(np.arange(groups), generator.geometric(1 / _MEAN_SIZE, groups))
        right = generator.random(len(codes)) >= rates(generator, groups)[codes]
        found.append(share(right, ImageGroups.of(codes)))
    return count_held(found, 1 - mean)


def print_groups(simulations: int) -> None:
    """Print the coverage of the accuracy by the groups and where their errors are."""
    print(f"{simulations} simulations a cell: held, mean width")
    print(f"| errors | {' | '.join(f'{groups} groups' for groups in _GROUPS)} |")
    print("|---" * (1 + len(_GROUPS)) + "|")
    for name in _RATES:
        cells = [groups_held(name, groups, simulations) for groups in _GROUPS]
        texts = [f"{cell.covered:.1%}, {cell.width:.3f}" for cell in cells]
        print(f"| {name} | {' | '.join(texts)} |", flush=True)


_SEEDS, _IMAGES, _DEVIATIONS = (2, 3, 5), (50, 200, 1000), (0.0, 0.035, 0.1, 0.35)


def gain_held(seeds: int, images: int, deviation: float, simulations: int) -> Held:
    """Draw pairs of equal settings and return what the intervals of their gain hold."""
    generator = np.random.default_rng(1)

    def right() -> Array:
        moved = deviation * generator.normal(size=(seeds, 1))
        scores: Array = 1.2 * easy + 1.3 + moved + generator.normal(size=(seeds, images))
        return scores > 0

    found = []
    for _ in range(simulations):
        easy = generator.normal(size=images)
        found.append(gain_of_shares(right(), right()))
    return count_held(found, 0.0)


def print_gains(simulations: int) -> None:
    """Print how often equal settings seem to be better, by the number of seeds."""
    print(f"{simulations} simulations a cell: found better, found worse, mean width")
    moved = " | ".join(f"seeds move scores by {each:g}" for each in _DEVIATIONS)
    print(f"| seeds | images | {moved} |")
    print("|---" * (2 + len(_DEVIATIONS)) + "|")
    for seeds in _SEEDS:
        for images in _IMAGES:
            cells = [gain_held(seeds, images, each, simulations) for each in _DEVIATIONS]
            texts = [f"{c.too_high:.1%}, {c.too_low:.1%}, {c.width:.3f}" for c in cells]
            print(f"| {seeds} | {images:,} | {' | '.join(texts)} |", flush=True)


def main() -> None:
    """Simulate what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, simulate, simulations in (
        ("map", print_maps, 200),
        ("groups", print_groups, 500),
        ("gain", print_gains, 1000),
    ):
        command = commands.add_parser(name)
        command.add_argument("simulations", type=int, nargs="?", default=simulations)
        command.set_defaults(simulate=simulate)
    given = parser.parse_args()
    print(machine(), flush=True)
    given.simulate(given.simulations)


if __name__ == "__main__":
    main()
