"""What temperature scaling does to probabilities, by the number of validation images.

python -m benchmarks.calibration

It takes about half an hour on two cores; `python -m benchmarks.calibration 4` simulates 4
validation sets per classifier and size instead of 20.

A classifier has normal scores, whose right temperature is known by construction: its logits are
those of the exact posterior, times the temperature. In half of the classifiers 3% of the labels are
drawn at random, so that no temperature is exactly right. Each simulation draws a validation set,
fits the temperature, and compares the log loss and the expected calibration error of 6,000 other
images with those at temperature 1. A change is relative to the log loss at temperature 1, or to
0.01 if that is less.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measured_runs import machine
from pipeline.metrics.temperature import HIGHEST, LOWEST, PRIOR_DEVIATION, fit_temperature

Array = np.ndarray[Any, Any]
SIMULATIONS = 20
IMAGES = (10, 20, 50, 100, 300, 1000, 2000)
CLASSES = (2, 10, 100)
ACCURACIES = (0.5, 0.8, 0.95, 0.99, 1.0)
TEMPERATURES = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
WRONG_LABELS = (0.0, 0.03)
PRIORS = (0.2, PRIOR_DEVIATION, 0.5, 0.7, 1.0)
LIKELIHOOD = "largest likelihood"
_TEST_IMAGES, _ECE_BINS = 6000, 10
_MOST_LOGITS = 100_000  # of a validation set
_WORSE, _MUCH_WORSE = 0.01, 0.1
_LEAST_LOSS = 0.01
_SKILL_OF_ALL_RIGHT = 6.0


class Classifier(NamedTuple):
    """A classifier and its images."""

    classes: int
    accuracy: float
    temperature: float
    """That makes its probabilities right."""
    wrong_labels: float
    """Share of the labels that are drawn at random."""

    def draw(
        self, generator: np.random.Generator, images: int, skill: float
    ) -> tuple[Array, Array]:
        """Return logits (N, K) and labels (N) of new images."""
        truth = generator.integers(0, self.classes, images)
        scores = generator.normal(size=(images, self.classes))
        scores[np.arange(images), truth] += skill
        wrong = generator.random(images) < self.wrong_labels
        labels = np.where(wrong, generator.integers(0, self.classes, images), truth)
        return self.temperature * skill * scores, labels

    def skill(self) -> float:
        """Return the distance of the classes that gives the accuracy, before wrong labels."""
        from scipy.optimize import brentq

        if self.accuracy == 1:
            return _SKILL_OF_ALL_RIGHT
        scores = np.random.default_rng(0).normal(size=(20_000, self.classes))
        others = scores[:, 1:].max(axis=1)

        def excess(skill: float) -> float:
            return float((scores[:, 0] + skill > others).mean()) - self.accuracy

        return float(brentq(excess, 0.05, 10.0)) if excess(0.05) < 0 else 0.05


class Change(NamedTuple):
    """What one fit changed on the test images."""

    images: int
    method: str
    temperature: float
    """The right one."""
    fitted: bool
    """Whether the temperature was changed at all."""
    log_loss: float
    """Relative to the log loss at temperature 1, or to 0.01."""
    ece: float


def losses(logits_NK: Array, labels_N: Array, temperature: float) -> tuple[float, float]:
    """Return the log loss and the expected calibration error."""
    scaled = (logits_NK - logits_NK.max(axis=1, keepdims=True)) / temperature
    totals = np.exp(scaled).sum(axis=1)
    own = np.take_along_axis(scaled, labels_N[:, None], axis=1)[:, 0]
    confidence, right = 1 / totals, logits_NK.argmax(axis=1) == labels_N
    bins = np.clip(np.ceil(confidence * _ECE_BINS).astype(int) - 1, 0, _ECE_BINS - 1)
    gaps = np.bincount(bins, right - confidence, minlength=_ECE_BINS)
    return float((np.log(totals) - own).mean()), float(np.abs(gaps).sum() / len(labels_N))


def most_likely(logits_NK: Array, labels_N: Array) -> float:
    """Return the temperature of the largest likelihood, without a prior."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda at: losses(logits_NK, labels_N, float(np.exp(at)))[0],
        bounds=(np.log(LOWEST), np.log(HIGHEST)),
        method="bounded",
    )
    return float(np.exp(found.x))


def _with_prior(deviation: float, logits_NK: Array, labels_N: Array) -> float:
    return fit_temperature(logits_NK, labels_N, deviation).temperature


def methods() -> dict[str, Callable[[Array, Array], float]]:
    """Return what is compared, by name."""
    priors = {f"prior {each:g}": partial(_with_prior, each) for each in PRIORS}
    return {LIKELIHOOD: most_likely, **priors}


def simulate(classifier: Classifier, simulations: int) -> list[Change]:
    """Fit temperatures on validation sets of every size."""
    generator = np.random.default_rng([*repr(classifier).encode()])
    skill = classifier.skill()
    test = classifier.draw(generator, _TEST_IMAGES, skill)
    before, ece = losses(*test, 1.0)
    found = []
    for images, _ in product(IMAGES, range(simulations)):
        if images * classifier.classes > _MOST_LOGITS:
            continue
        validation = classifier.draw(generator, images, skill)
        for name, fit in methods().items():
            temperature = fit(*validation)
            after, ece_after = losses(*test, temperature)
            found.append(
                Change(
                    images,
                    name,
                    classifier.temperature,
                    temperature != 1,
                    (after - before) / max(before, _LEAST_LOSS),
                    ece_after - ece,
                )
            )
    return found


def rows(changes: list[Change], by: Callable[[Change], float], title: str) -> Iterator[str]:
    """Yield the lines of a table with one row for each method and each value of `by`."""
    yield (
        f"| method | {title} | fitted | log loss worse by over 1% | by over 10% | mean change "
        "| 99th percentile | largest | mean change of ECE | largest |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    values = sorted({by(change) for change in changes})
    names = [name for name in methods() if any(change.method == name for change in changes)]
    for name, value in product(names, values):
        group = [change for change in changes if change.method == name and by(change) == value]
        loss, ece = (np.array([getattr(change, key) for change in group]) for key in _CHANGED)
        yield (
            f"| {name} | {value} | {np.mean([change.fitted for change in group]):.0%} "
            f"| {np.mean(loss > _WORSE):.1%} | {np.mean(loss > _MUCH_WORSE):.1%} "
            f"| {loss.mean():+.1%} | {np.quantile(loss, 0.99):+.0%} | {loss.max():+.0%} "
            f"| {ece.mean():+.3f} | {ece.max():+.3f} |"
        )


_CHANGED = ("log_loss", "ece")


def main(simulations: int = SIMULATIONS) -> None:
    """Print the tables."""
    print(machine())
    classifiers = [
        Classifier(*parts) for parts in product(CLASSES, ACCURACIES, TEMPERATURES, WRONG_LABELS)
    ]
    print(f"{len(classifiers)} classifiers, {simulations} validation sets of each size\n")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(simulate, classifier, simulations) for classifier in classifiers]
        changes = [change for job in jobs for change in job.result()]
    print("\n".join(rows(changes, lambda _: len(classifiers), "classifiers")))
    shown = {LIKELIHOOD, f"prior {PRIOR_DEVIATION:g}"}
    few = [change for change in changes if change.method in shown]
    print("", *rows(few, lambda change: change.images, "validation images"), sep="\n")
    print("", *rows(few, lambda change: change.temperature, "right temperature"), sep="\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
