"""How often the 95% intervals contain the true value: a table by metric and number of images.

python -m benchmarks.interval_coverage

It takes about ten minutes on two cores; `python -m benchmarks.interval_coverage 100` simulates 100
times instead of 1,000.

A population of 60,000 images per setting stands for the truth. Each simulation draws n of them, in
every class its share and at least one, and computes all metrics and their intervals.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measured_runs import machine
from pipeline.metrics.classification import metrics, softmax
from pipeline.metrics.intervals import MetricEstimate, f1_scores, proportion
from pipeline.metrics.names import METRICS
from pipeline.metrics.ranking import average_precision, roc_auc

Array = np.ndarray[Any, Any]
SIMULATIONS = 1000
IMAGES = (20, 100, 1000)
_POPULATION = 60_000


class Setting(NamedTuple):
    """A classifier and its data."""

    shares: tuple[float, ...]
    """Of the classes."""
    accuracy: float
    temperature: float = 1.0
    """What divides the right logits; below 1 the probabilities are too sure."""


class Coverage(NamedTuple):
    """What the simulations of one setting say of one metric."""

    metric: str
    images: int
    setting: Setting
    covered: float
    width: float


_EVEN_2, _EVEN_3, _EVEN_10 = ((1 / k,) * k for k in (2, 3, 10))
SETTINGS = (
    *(Setting(_EVEN_2, accuracy) for accuracy in (0.7, 0.8, 0.9, 0.95, 0.99)),
    *(Setting((0.6, 0.3, 0.1), accuracy) for accuracy in (0.7, 0.8, 0.9, 0.95, 0.99)),
    *(Setting(_EVEN_10, accuracy) for accuracy in (0.3, 0.5, 0.7, 0.9, 0.99)),
    *(Setting(_EVEN_3, accuracy, 0.7) for accuracy in (0.5, 0.9)),
    *(Setting(_EVEN_3, accuracy, 1.4) for accuracy in (0.5, 0.9)),
)


def population(setting: Setting) -> tuple[Array, Array]:
    """Return probabilities and labels of normal scores whose accuracy is the setting's."""
    from scipy.optimize import brentq

    generator = np.random.default_rng(0)
    shares = np.array(setting.shares)
    labels = np.repeat(np.arange(len(shares)), np.round(shares * _POPULATION).astype(int))
    noise = generator.normal(size=(len(labels), len(shares)))
    hot = np.eye(len(shares))[labels]

    def logits(skill: float) -> Array:
        scores: Array = skill * noise + skill**2 * hot + np.log(shares)  # the exact posterior
        return scores

    def excess(skill: float) -> float:
        return float((logits(skill).argmax(axis=1) == labels).mean()) - setting.accuracy

    skill = brentq(excess, 1e-3, 10.0, xtol=1e-4)
    return softmax(logits(skill), setting.temperature), labels


def figures(probabilities: Array, labels: Array) -> dict[str, MetricEstimate]:
    """Return all metrics, and those of the last class."""
    last = probabilities.shape[1] - 1
    is_last, is_called = labels == last, probabilities.argmax(axis=1) == last
    hits, union = int((is_last & is_called).sum()), int((is_last | is_called).sum())
    own = {
        "precision": proportion(hits, int(is_called.sum())),
        "recall": proportion(hits, int(is_last.sum())),
        "f1": f1_scores(np.array([hits]), np.array([union]))[0],
        "roc_auc": roc_auc(probabilities[:, last], is_last),
        "pr_auc": average_precision(probabilities[:, last], is_last),
    }
    found = metrics(probabilities, labels)
    del found["macro_recall"], found["weighted_recall"]  # balanced accuracy and accuracy again
    return found | {f"{key} of a class": value for key, value in own.items() if value is not None}


def simulate(setting: Setting, images: int, simulations: int) -> list[Coverage]:
    """Draw test sets and count the intervals that contain the population's value."""
    generator = np.random.default_rng([images, *repr(setting).encode()])
    probabilities, labels = population(setting)
    truth = {key: value.value for key, value in figures(probabilities, labels).items()}
    of_class = [np.flatnonzero(labels == k) for k in range(len(setting.shares))]
    sizes = [max(1, round(images * share)) for share in setting.shares]
    found = defaultdict(list)
    for _ in range(simulations):
        drawn = np.concatenate(
            [generator.choice(own, size) for own, size in zip(of_class, sizes, strict=True)]
        )
        for key, estimate in figures(probabilities[drawn], labels[drawn]).items():
            held = estimate.low - 1e-12 <= truth[key] <= estimate.high + 1e-12
            found[key].append((held, estimate.high - estimate.low))
    return [
        Coverage(key, images, setting, *(float(part) for part in np.mean(pairs, axis=0)))
        for key, pairs in found.items()
    ]


def rows(coverages: list[Coverage]) -> list[str]:
    """Return the lines of the table."""
    grouped = defaultdict(list)
    for coverage in coverages:
        grouped[coverage.metric, coverage.images].append(coverage)
    lines = [
        "| metric | n | true values | mean coverage | lowest | at | mean width |",
        "|---|---|---|---|---|---|---|",
    ]
    order = [*METRICS, *(metric for metric, _ in grouped)]
    for metric, images in sorted(grouped, key=lambda pair: (order.index(pair[0]), pair[1])):
        group = grouped[metric, images]
        lowest = min(group, key=lambda coverage: coverage.covered)
        lines.append(
            f"| {metric} | {images:,} | {len(group)} "
            f"| {np.mean([coverage.covered for coverage in group]):.1%} | {lowest.covered:.1%} "
            f"| {_described(lowest.setting)} "
            f"| {np.mean([coverage.width for coverage in group]):.3f} |"
        )
    return lines


def _described(setting: Setting) -> str:
    even = "" if len(set(setting.shares)) == 1 else " uneven"
    sure = "" if setting.temperature == 1 else f", temperature {setting.temperature}"
    return f"{len(setting.shares)}{even} classes, accuracy {setting.accuracy}{sure}"


def main(simulations: int = SIMULATIONS) -> None:
    """Print the table."""
    print(machine())
    print(f"{simulations:,} simulations for each true value and n\n")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(simulate, setting, images, simulations)
            for setting in SETTINGS
            for images in IMAGES
        ]
        coverages = [coverage for job in jobs for coverage in job.result()]
    print("\n".join(rows(coverages)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
