"""Simulations of what the metrics, the calibration and the promotion gate promise.

    python -m benchmarks.statistical_methods intervals [SIMULATIONS]
    python -m benchmarks.statistical_methods calibration [SIMULATIONS]
    python -m benchmarks.statistical_methods weights [SIMULATIONS]
    python -m benchmarks.statistical_methods temperature_groups [SIMULATIONS]
    python -m benchmarks.statistical_methods gate
    python -m benchmarks.statistical_methods label_sets [TRIALS]
    python -m benchmarks.statistical_methods groups [TRIALS]
    python -m benchmarks.statistical_methods mirror [TRIALS]

`intervals` prints how often the 95% intervals contain the true value, by metric and number of
images (about ten minutes on two cores; 1,000 simulations unless given). A population of 60,000
images per setting stands for the truth. Each simulation draws n of them, in every class its share
and at least one, and computes all metrics and their intervals.

`calibration` prints what temperature scaling does to probabilities, by the number of validation
images (about half an hour on two cores; 20 validation sets per classifier and size unless given). A
classifier has normal scores, whose right temperature is known by construction: its logits are those
of the exact posterior, times the temperature. In half of the classifiers 3% of the labels are drawn
at random, so that no temperature is exactly right. Each simulation draws a validation set, fits the
temperature, and compares the log loss and the expected calibration error of 6,000 other images with
those at temperature 1. A change is relative to the log loss at temperature 1, or to 0.01 if that is
less.

`weights` prints what the bias of each class does to the probabilities of a classifier that was
trained with balanced classes, beside a temperature alone and the logarithm of the class shares (100
validation sets a setting unless given). The weights have moved its log odds by the logarithm of the
shares, by half of it, or not at all, and each class by a normal deviate more.

`temperature_groups` prints how often the interval of the temperature holds the right one, that of
many images, with images in groups (200 validation sets a setting unless given).

`gate` prints how often the paired promotion gate promotes an equally good model, and a better one.

`label_sets` prints the same of the gate for sets of labels, a paired bootstrap of mAP, and of macro
F1 (400 pairs of models a setting unless given). Scores are normal, with an error that both models
have in common; the labels have different shares of the images.

`groups` prints the same of both gates for images in groups, such as patients, beside what the tests
of single images would do, and how often the interval of the difference holds the true one (1,000
pairs of models a setting unless given; a quarter of them for sets of labels, with at most 300
images). In each group the
images on which just one model is right prefer one of the two, by a normal deviate of the group; a
quarter of the groups have as many images as the other three quarters.

`mirror` prints what the measurement of mirror symmetry answers, for data sets that are symmetric by
construction and for others (40 of each setting unless given; about six minutes). An image is its
class's pattern, its group's, and noise. In a symmetric data set each group, or each image, shows
its patterns mirrored with probability one half; in an asymmetric one the class's pattern never is.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from benchmarks.measured_runs import machine
from patchline.pipeline.data.symmetry.mirror_probe import compare_mirror_images
from patchline.pipeline.evaluation.metrics.classification import by_class, metrics, softmax
from patchline.pipeline.evaluation.metrics.curve_areas import average_precision, roc_auc
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    f1_of_jaccard,
    proportion,
)
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    PAIRED,
    compare_metrics,
)
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    ThresholdedScores as SetAnswers,
)
from patchline.pipeline.evaluation.metrics.names import METRICS
from patchline.pipeline.evaluation.metrics.paired_test import compute_paired_difference, is_better
from patchline.pipeline.evaluation.metrics.temperature import (
    HIGHEST,
    LOWEST,
    PRIOR_DEVIATION,
    fit_temperature,
)

Array = np.ndarray[Any, Any]
_SIMULATIONS = 1000
_TESTED = (20, 100, 1000)
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


def estimates(probabilities: Array, labels: Array) -> dict[str, MetricEstimate]:
    """Return all metrics, and those of the last class."""
    last = probabilities.shape[1] - 1
    is_last, is_called = labels == last, probabilities.argmax(axis=1) == last
    hits, union = int((is_last & is_called).sum()), int((is_last | is_called).sum())
    own = {
        "precision": proportion(hits, int(is_called.sum())),
        "recall": proportion(hits, int(is_last.sum())),
        "f1": f1_of_jaccard(proportion(hits, union)),
        "roc_auc": roc_auc(probabilities[:, last], is_last),
        "pr_auc": average_precision(probabilities[:, last], is_last),
    }
    found = metrics(probabilities, labels)
    del found["macro_recall"], found["weighted_recall"]  # balanced accuracy and accuracy again
    return found | {f"{key} of a class": value for key, value in own.items() if value is not None}


def simulate_intervals(setting: Setting, images: int, simulations: int) -> list[Coverage]:
    """Draw test sets and count the intervals that contain the population's value."""
    generator = np.random.default_rng([images, *repr(setting).encode()])
    probabilities, labels = population(setting)
    truth = {key: value.value for key, value in estimates(probabilities, labels).items()}
    of_class = [np.flatnonzero(labels == k) for k in range(len(setting.shares))]
    sizes = [max(1, round(images * share)) for share in setting.shares]
    found = defaultdict(list)
    for _ in range(simulations):
        drawn = np.concatenate(
            [generator.choice(own, size) for own, size in zip(of_class, sizes, strict=True)]
        )
        for key, estimate in estimates(probabilities[drawn], labels[drawn]).items():
            held = estimate.low - 1e-12 <= truth[key] <= estimate.high + 1e-12
            found[key].append((held, estimate.high - estimate.low))
    return [
        Coverage(key, images, setting, *(float(part) for part in np.mean(pairs, axis=0)))
        for key, pairs in found.items()
    ]


def coverage_rows(coverages: list[Coverage]) -> list[str]:
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
            f"| {_describe(lowest.setting)} "
            f"| {np.mean([coverage.width for coverage in group]):.3f} |"
        )
    return lines


def _describe(setting: Setting) -> str:
    even = "" if len(set(setting.shares)) == 1 else " uneven"
    sure = "" if setting.temperature == 1 else f", temperature {setting.temperature}"
    return f"{len(setting.shares)}{even} classes, accuracy {setting.accuracy}{sure}"


def print_coverage(given: argparse.Namespace) -> None:
    """Print a table by metric and number of images."""
    simulations = given.simulations or _SIMULATIONS
    print(f"{simulations:,} simulations for each true value and n\n")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(simulate_intervals, setting, images, simulations)
            for setting in SETTINGS
            for images in _TESTED
        ]
        coverages = [coverage for job in jobs for coverage in job.result()]
    print("\n".join(coverage_rows(coverages)))


_VALIDATION_SETS = 20
_VALIDATED = (10, 20, 50, 100, 300, 1000, 2000)
_CLASSES = (2, 10, 100)
_ACCURACIES = (0.5, 0.8, 0.95, 0.99, 1.0)
_TEMPERATURES = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
_WRONG_LABELS = (0.0, 0.03)
_PRIORS = (0.2, PRIOR_DEVIATION, 0.5, 0.7, 1.0)
_LIKELIHOOD = "largest likelihood"
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
    priors = {f"prior {each:g}": partial(_with_prior, each) for each in _PRIORS}
    return {_LIKELIHOOD: most_likely, **priors}


def simulate_fits(classifier: Classifier, simulations: int) -> list[Change]:
    """Fit temperatures on validation sets of every size."""
    generator = np.random.default_rng([*repr(classifier).encode()])
    skill = classifier.skill()
    test = classifier.draw(generator, _TEST_IMAGES, skill)
    before, ece = losses(*test, 1.0)
    found = []
    for images, _ in product(_VALIDATED, range(simulations)):
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


def change_rows(changes: list[Change], by: Callable[[Change], float], title: str) -> Iterator[str]:
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


def print_calibration(given: argparse.Namespace) -> None:
    """Print tables by method, number of validation images and right temperature."""
    simulations = given.simulations or _VALIDATION_SETS
    classifiers = [
        Classifier(*parts) for parts in product(_CLASSES, _ACCURACIES, _TEMPERATURES, _WRONG_LABELS)
    ]
    print(f"{len(classifiers)} classifiers, {simulations} validation sets of each size\n")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(simulate_fits, classifier, simulations) for classifier in classifiers]
        changes = [change for job in jobs for change in job.result()]
    print("\n".join(change_rows(changes, lambda _: len(classifiers), "classifiers")))
    shown = {_LIKELIHOOD, f"prior {PRIOR_DEVIATION:g}"}
    few = [change for change in changes if change.method in shown]
    print("", *change_rows(few, lambda change: change.images, "validation images"), sep="\n")
    print("", *change_rows(few, lambda change: change.temperature, "right temperature"), sep="\n")


class WeightSetting(NamedTuple):
    """A classifier that was trained with balanced classes."""

    shares: tuple[float, ...]
    """Of the images, by class."""
    effect: float
    """Multiple of the logarithm of the shares by which the weights have moved the log odds."""
    temperature: float = 1.5
    skill: float = 2.0
    deviation: float = 0.3
    """Of each class from that multiple."""

    def draw(
        self, generator: np.random.Generator, images: int, deviation_K: Array
    ) -> tuple[Array, Array]:
        """Return logits (N, K) and labels (N) of new images."""
        labels = generator.choice(len(self.shares), images, p=self.shares)
        scores = generator.normal(size=(images, len(self.shares)))
        scores[np.arange(images), labels] += self.skill
        log_K = np.log(self.shares)
        posterior = self.skill * scores + log_K
        return self.temperature * (posterior - self.effect * log_K + deviation_K), labels


_SHARES = ((0.8, 0.14, 0.06), (0.96, 0.04), tuple(np.r_[0.5, np.full(9, 0.5 / 9)]))
_WEIGHT_SETTINGS = tuple(
    WeightSetting(shares, effect) for shares in _SHARES for effect in (1.0, 0.5, 0.0)
)
_WEIGHT_IMAGES, _TRAINED = (0, 50, 150, 500, 2000), 10_000


def _of_weights(setting: WeightSetting, images: int, trials: int) -> tuple[Array, Array, float]:
    """Return by method the mean log loss and the mean probability of the rarest class; coverage.

    The methods are a temperature alone, one after the logarithm of the shares is added, and the fit
    with a bias for each class; the log loss is that above the exact posterior's.
    """
    generator, log_K = np.random.default_rng(23), np.log(setting.shares)
    found, rare, covered = np.zeros((trials, 3)), np.zeros((trials, 3)), 0
    trained = [round(_TRAINED * share) for share in setting.shares]
    for trial in range(trials):
        deviation_K = generator.normal(size=len(log_K)) * setting.deviation
        logits, labels = setting.draw(generator, images, deviation_K)
        new, truth = setting.draw(generator, _TEST_IMAGES, deviation_K)
        exact = softmax(new / setting.temperature + setting.effect * log_K - deviation_K)
        alone = fit_temperature(logits, labels)
        moved = fit_temperature(logits + log_K, labels)
        fit = fit_temperature(logits, labels, class_images=trained)
        covered += (fit.low or 0) <= setting.temperature <= (fit.high or math.inf)
        answers = (
            softmax(new, alone.temperature),
            softmax(new + log_K, moved.temperature),
            softmax(fit.logits(new)),
        )
        own, least = np.arange(_TEST_IMAGES), int(np.argmin(setting.shares))
        best = -np.log(exact[own, truth]).mean()
        found[trial] = [-np.log(each[own, truth]).mean() - best for each in answers]
        rare[trial] = [each[:, least].mean() / exact[:, least].mean() for each in answers]
    return found.mean(axis=0), rare, covered / trials


def print_weights(given: argparse.Namespace) -> None:
    """Print a table of what a bias for each class does after balanced classes."""
    trials = given.simulations or 100
    print(f"{trials} validation sets in each setting: T alone / log shares / bias for each class")
    print(
        "| classes | rarest | effect of the weights | validation images | log loss above the exact "
        "posterior's | mean probability of the rarest class over its share | 5 to 95% of these, "
        "with a bias | coverage of T |"
    )
    print("|---" * 8 + "|")
    for setting, images in product(_WEIGHT_SETTINGS, _WEIGHT_IMAGES):
        loss, rare, covered = _of_weights(setting, images, trials)
        low, high = np.quantile(rare[:, 2], (0.05, 0.95))
        print(
            f"| {len(setting.shares)} | {min(setting.shares):.0%} | {setting.effect:g} "
            f"| {images:,} | {' / '.join(f'{each:.3f}' for each in loss)} "
            f"| {' / '.join(f'{each:.2f}' for each in rare.mean(axis=0))} "
            f"| {low:.2f} to {high:.2f} | {covered:.0%} |",
            flush=True,
        )


_TRIALS = 200
_DIFFERENCES = 1000
_EQUAL = ((0.7, 0.3), (0.9, 0.15), (0.9, 0.05), (0.97, 0.05), (0.99, 0.01))
"""Accuracy of both models, and the share of images on which just one of them is right."""


def answers(
    generator: np.random.Generator, images: int, *, accuracy: float, gain: float, discordant: float
) -> tuple[Array, Array]:
    """Return which images model a, of that accuracy, and model b, better by `gain`, get right."""
    only_b, only_a = (discordant + gain) / 2, (discordant - gain) / 2
    both = accuracy - only_a
    kind = generator.choice(4, images, p=(both, only_a, only_b, 1 - both - only_a - only_b))
    return np.isin(kind, (0, 1)), np.isin(kind, (0, 2))


def count_promoted(
    images: int, *, accuracy: float, gain: float, discordant: float, seed: int
) -> int:
    """Return in how many of the trials b passes the gate."""
    generator = np.random.default_rng(seed)
    return sum(
        is_better(
            compute_paired_difference(
                *answers(generator, images, accuracy=accuracy, gain=gain, discordant=discordant)
            )
        )
        for _ in range(_TRIALS)
    )


def difference_coverage(images: int, *, accuracy: float, gain: float, discordant: float) -> float:
    """Return the share of simulations whose interval holds the true gain."""
    generator = np.random.default_rng(images)
    held = 0
    for _ in range(_DIFFERENCES):
        pair = answers(generator, images, accuracy=accuracy, gain=gain, discordant=discordant)
        estimate = compute_paired_difference(*pair).difference
        held += estimate.low <= gain <= estimate.high
    return held / _DIFFERENCES


def print_promotions(_: argparse.Namespace) -> None:
    """Print both shares, and how often the interval of the difference holds the true one."""
    print(f"equal models, promoted of {_TRIALS} trials (17 at most):")
    for images in (200, 2000):
        for seed, (accuracy, discordant) in enumerate(_EQUAL):
            count = count_promoted(
                images, accuracy=accuracy, gain=0.0, discordant=discordant, seed=seed
            )
            print(f"  n = {images:,}, accuracy {accuracy}, discordant {discordant}: {count}")
    count = count_promoted(2000, accuracy=0.85, gain=0.03, discordant=0.15, seed=0)
    print(
        f"better by 3 points, n = 2,000, discordant 0.15: promoted {count} of {_TRIALS} "
        f"= {count / _TRIALS:.0%} (80% at least)"
    )
    print(f"interval of the difference, {_DIFFERENCES:,} simulations each:")
    for images in (20, 100, 1000):
        found = [
            difference_coverage(images, accuracy=accuracy, gain=gain, discordant=discordant)
            for accuracy, gain, discordant in (
                *((accuracy, 0.0, discordant) for accuracy, discordant in _EQUAL),
                (0.85, 0.03, 0.15),
                (0.6, 0.2, 0.3),
                (0.94, 0.05, 0.06),
            )
        ]
        print(f"  n = {images:,}: mean coverage {np.mean(found):.1%}, lowest {min(found):.1%}")


class LabelSetSetting(NamedTuple):
    """A pair of models that give sets of labels."""

    images: int
    labels: int
    rarest: float
    """Share of the images with the rarest label; the commonest has three times as many."""
    common: float
    """Share of the variance of the scores that both models have in common."""
    gain: float = 0.0
    """What the second model's scores of an image with a label exceed the first's by."""


_EQUAL_LABEL_SETS = (
    LabelSetSetting(50, 3, 0.1, 0.5),
    LabelSetSetting(50, 6, 0.05, 0.8),
    LabelSetSetting(100, 20, 0.03, 0.5),
    LabelSetSetting(300, 6, 0.1, 0.8),
    LabelSetSetting(1000, 3, 0.02, 0.5),
)
_BETTER_LABEL_SETS = (
    LabelSetSetting(100, 6, 0.1, 0.5, 0.5),
    LabelSetSetting(300, 6, 0.1, 0.5, 0.1),
    LabelSetSetting(300, 6, 0.1, 0.5, 0.25),
    LabelSetSetting(300, 6, 0.1, 0.5, 0.5),
    LabelSetSetting(1000, 6, 0.1, 0.5, 0.05),
    LabelSetSetting(1000, 6, 0.1, 0.5, 0.1),
    LabelSetSetting(1000, 6, 0.1, 0.5, 0.25),
)
_DECIDING = (*PAIRED, "both")
"""What could decide a promotion: one of the metrics, which is mAP, or both of them."""


def label_set_pairs(setting: LabelSetSetting, trials: int) -> tuple[Array, dict[str, int]]:
    """Return the mean gains of both metrics, and how often the second passes, by what decides."""
    generator = np.random.default_rng(7)
    shares = np.linspace(setting.rarest, 3 * setting.rarest, setting.labels)
    passed, gains = dict.fromkeys(_DECIDING, 0), []
    for seed in range(trials):
        labels = (generator.random((setting.images, setting.labels)) < shares).astype(np.uint8)
        shared = generator.normal(size=labels.shape) * np.sqrt(setting.common)
        answers = []
        for skill in (1.5, 1.5 + setting.gain):
            own = generator.normal(size=labels.shape) * np.sqrt(1 - setting.common)
            scores = skill * labels + shared + own
            answers.append(SetAnswers(scores, (scores >= 1.0).astype(np.uint8)))
        found = compare_metrics(labels, answers[0], answers[1], seed=seed)
        gains.append([found[name].difference.value for name in PAIRED])
        better = {name: is_better(found[name]) for name in PAIRED}
        for name, passes in {**better, "both": all(better.values())}.items():
            passed[name] += passes
    return np.mean(gains, axis=0), passed


def print_label_sets(given: argparse.Namespace) -> None:
    """Print how often the second of two equal models passes, and of two of which it is better."""
    trials = given.simulations or 400
    print(f"{trials} pairs of models in each setting; 95% intervals of the rates")
    for title, settings in (("equal", _EQUAL_LABEL_SETS), ("better", _BETTER_LABEL_SETS)):
        deciding = " | ".join(f"{name} decides" for name in _DECIDING)
        print(f"| {title}: images | labels | rarest | common | mAP gain | F1 gain | {deciding} |")
        print("|---" * (6 + len(_DECIDING)) + "|")
        for setting in settings:
            gains, passed = label_set_pairs(setting, trials)
            shares = [proportion(passed[name], trials) for name in _DECIDING]
            texts = [f"{s.value:.1%} ({s.low:.1%} to {s.high:.1%})" for s in shares]
            print(
                f"| {setting.images:,} | {setting.labels} | {setting.rarest:.0%} "
                f"| {setting.common:.0%} | {100 * gains[0]:+.1f} | {100 * gains[1]:+.1f} "
                f"| {' | '.join(texts)} |",
                flush=True,
            )


class GroupSetting(NamedTuple):
    """A pair of models whose images form groups."""

    groups: int
    images: int
    spread: float
    """Of the groups' preferences; 0 for images that are independent."""
    shift: float = 0.0
    """Mean preference for the second model, of equally good ones 0."""


_GROUP_SETTINGS = tuple(
    GroupSetting(groups, images, spread, shift)
    for shift in (0.0, 1.0)
    for groups, images in ((10, 200), (30, 300), (50, 2000), (200, 2000))
    for spread in (0.0, 1.0, 3.0)
)
_DISCORDANT, _MOST_OF_SETS, _MOST_IN_REPORTS = 0.15, 300, 2000


def _group_images(setting: GroupSetting) -> Array:
    """Return the group of each image; the first quarter of the groups has half of the images."""
    large = max(1, setting.groups // 4)
    weights = np.where(np.arange(setting.groups) < large, 0.5 / large, 0.0)
    weights[large:] = 0.5 / (setting.groups - large)
    extra = np.round(weights * (setting.images - setting.groups)).astype(int)
    return np.repeat(np.arange(setting.groups), 1 + extra)


def count_grouped_pairs(setting: GroupSetting, trials: int) -> tuple[int, int, int]:
    """Return in how many trials b passes the test of images and that of groups, and is covered."""
    generator = np.random.default_rng(11)
    groups_N = _group_images(setting)
    groups = ImageGroups.of(groups_N)
    deviation = math.sqrt(1 + setting.spread**2)
    true = _DISCORDANT * (2 * float(norm.cdf(setting.shift / deviation)) - 1)
    of_images = of_groups = covered = 0
    for _ in range(trials):
        preference_G = generator.normal(setting.shift, max(setting.spread, 1e-9), setting.groups)
        differs = generator.random(len(groups_N)) < _DISCORDANT
        b_wins = generator.random(len(groups_N)) < norm.cdf(preference_G)[groups_N]
        shared = generator.random(len(groups_N)) < 0.8  # noqa: PLR2004 - accuracy where they agree
        a, b = np.where(differs, ~b_wins, shared), np.where(differs, b_wins, shared)
        of_images += is_better(compute_paired_difference(a, b))
        pair = compute_paired_difference(a, b, groups)
        of_groups += is_better(pair)
        covered += pair.difference.low <= true <= pair.difference.high
    return of_images, of_groups, covered


def count_grouped_label_sets(setting: GroupSetting, trials: int) -> tuple[int, int]:
    """Return in how many trials the mAP of b passes the test of images and that of groups.

    The labels and the errors of a model are partly those of the group.
    """
    generator = np.random.default_rng(13)
    groups_N = _group_images(setting)
    groups = ImageGroups.of(groups_N)
    share = setting.spread**2 / (1 + setting.spread**2)
    shape_G, shape_N = (setting.groups, 5), (len(groups_N), 5)
    of_images = of_groups = 0
    for seed in range(trials):
        labels = (generator.random(shape_N) < 0.2).astype(np.uint8)  # noqa: PLR2004 - of the images
        answers = []
        for skill in (1.0, 1.0 + 0.5 * setting.shift):
            of_group = generator.normal(size=shape_G)[groups_N] * math.sqrt(share)
            own = generator.normal(size=shape_N) * math.sqrt(1 - share)
            scores = skill * labels + of_group + own
            answers.append(SetAnswers(scores, (scores >= 1.0).astype(np.uint8)))
        a, b = answers
        of_images += is_better(compare_metrics(labels, a, b, seed=seed)["mAP"])
        grouped = compare_metrics(labels, a, b, groups=groups, seed=seed)
        of_groups += is_better(grouped["mAP"])
    return of_images, of_groups


_REPORTED = ("accuracy", "macro_f1", "mcc", "roc_auc", "pr_auc", "log_loss", "ece")
_OF_CLASS = ("recall", "precision", "f1")
_CLASSES_OF_GROUPS, _MANY_GROUPS = 3, 40_000


def _draw_grouped_classifier(
    generator: np.random.Generator, groups_N: Array, count: int, spread: float
) -> tuple[Array, Array]:
    """Return probabilities (N, K) and labels (N) of images whose groups share class and errors.

    Args:
        generator: of the numbers.
        groups_N: group of each image.
        count: number of groups.
        spread: of what an image of a group has in common with the others, to what is its own.
    """
    own_class = generator.random(len(groups_N)) < 1 / (1 + spread)
    labels = np.where(
        own_class,
        generator.choice(_CLASSES_OF_GROUPS, len(groups_N), p=(0.5, 0.3, 0.2)),
        generator.choice(_CLASSES_OF_GROUPS, count, p=(0.5, 0.3, 0.2))[groups_N],
    )
    share = spread**2 / (1 + spread**2)
    shared_NK = generator.normal(size=(count, _CLASSES_OF_GROUPS))[groups_N]
    noise_NK = math.sqrt(share) * shared_NK
    noise_NK += math.sqrt(1 - share) * generator.normal(size=shared_NK.shape)
    scores_NK = 1.7 * (np.eye(_CLASSES_OF_GROUPS)[labels] + 0.8 * noise_NK)
    return softmax(scores_NK), labels


def _of_report(
    probabilities_NK: Array, labels_N: Array, groups: ImageGroups | None
) -> dict[str, MetricEstimate]:
    found = metrics(probabilities_NK, labels_N, groups=groups)
    names = tuple(map(str, range(_CLASSES_OF_GROUPS)))
    *_, rarest = by_class(probabilities_NK, labels_N, names, groups=groups)
    of_class = {f"{key} of a class": getattr(rarest, key) for key in _OF_CLASS}
    return {**{key: found[key] for key in _REPORTED}, **of_class}


def measure_grouped_coverage(setting: GroupSetting, trials: int) -> dict[str, tuple[float, float]]:
    """Return how often intervals that take images, and groups, as independent hold the truth."""
    generator = np.random.default_rng(17)
    groups_N = _group_images(setting)
    groups = ImageGroups.of(groups_N)
    # the truth is that of many groups, with sizes as those of the sample
    copies = max(1, _MANY_GROUPS // setting.groups)
    many_N = (np.arange(copies)[:, None] * setting.groups + groups_N).ravel()
    population = _draw_grouped_classifier(
        generator, many_N, copies * setting.groups, setting.spread
    )
    truth = {key: each.value for key, each in _of_report(*population, None).items()}
    held = {key: np.zeros(2) for key in truth}
    for _ in range(trials):
        drawn = _draw_grouped_classifier(generator, groups_N, setting.groups, setting.spread)
        for place, each in enumerate((None, groups)):
            for key, found in _of_report(*drawn, each).items():
                held[key][place] += found.low <= truth[key] <= found.high
    return {key: (float(each[0]) / trials, float(each[1]) / trials) for key, each in held.items()}


def print_grouped_coverage(trials: int) -> None:
    """Print how often the intervals of a report hold the truth, by images and by groups."""
    print(f"\nintervals of a report, {trials} reports in each setting: by images / by groups")
    columns = (*_REPORTED, *(f"{key} of a class" for key in _OF_CLASS))
    print(f"| groups | images | spread | {' | '.join(columns)} |")
    print("|---" * (3 + len(columns)) + "|")
    for setting in _GROUP_SETTINGS:
        if setting.shift or setting.images > _MOST_IN_REPORTS:
            continue
        held = measure_grouped_coverage(setting, trials)
        cells = [f"{100 * held[key][0]:.0f} / {100 * held[key][1]:.0f}" for key in columns]
        print(
            f"| {setting.groups} | {setting.images:,} | {setting.spread:g} | {' | '.join(cells)} |",
            flush=True,
        )


def print_temperature_groups(given: argparse.Namespace) -> None:
    """Print how often the temperature's interval holds the right one, by images and by groups."""
    trials = given.simulations or 200
    print(f"{trials} validation sets in each setting; coverage, and how often T is determined")
    print("| groups | images | spread | by images | determined | by groups | determined |")
    print("|---" * 7 + "|")
    for setting in _GROUP_SETTINGS:
        if setting.shift:
            continue
        generator, groups_N = np.random.default_rng(29), _group_images(setting)
        groups = ImageGroups.of(groups_N)
        copies = max(1, _MANY_GROUPS // setting.groups)
        many_N = (np.arange(copies)[:, None] * setting.groups + groups_N).ravel()
        count = copies * setting.groups
        population = _draw_grouped_classifier(generator, many_N, count, setting.spread)
        true = most_likely(np.log(population[0]), population[1])
        held, determined = np.zeros(2), np.zeros(2)
        for _ in range(trials):
            drawn, labels = _draw_grouped_classifier(
                generator, groups_N, setting.groups, setting.spread
            )
            for place, each in enumerate((None, groups)):
                fit = fit_temperature(np.log(drawn), labels, groups=each)
                held[place] += (fit.low or 0) <= true <= (fit.high or math.inf)
                determined[place] += fit.is_determined
        cells = [
            f"{each / trials:.0%}" for pair in zip(held, determined, strict=True) for each in pair
        ]
        print(
            f"| {setting.groups} | {setting.images:,} | {setting.spread:g} | {' | '.join(cells)} |",
            flush=True,
        )


def print_groups(given: argparse.Namespace) -> None:
    """Print how often the second model passes either test, and the coverage of the intervals."""
    trials = given.simulations or 1000
    print_grouped_coverage(max(1, trials // 2))
    print(f"{trials} pairs of models in each setting, {_DISCORDANT:.0%} of the images discordant")
    print(
        "| models | groups | images | spread | of images | of groups | coverage "
        "| mAP, of images | mAP, of groups |"
    )
    print("|---" * 9 + "|")
    for setting in _GROUP_SETTINGS:
        counts = count_grouped_pairs(setting, trials)
        cells = [f"{count / trials:.1%}" for count in counts] + ["not run", "not run"]
        if setting.images <= _MOST_OF_SETS:
            sets = count_grouped_label_sets(setting, trials // 4)
            cells[-2:] = [f"{count / (trials // 4):.1%}" for count in sets]
        print(
            f"| {'better' if setting.shift else 'equal'} | {setting.groups} "
            f"| {setting.images:,} | {setting.spread:g} "
            f"| {' | '.join(cells)} |",
            flush=True,
        )


class MirrorSetting(NamedTuple):
    """Data sets of images that may be mirrored."""

    classes: str
    groups: tuple[int, ...]
    """Of each class."""
    images: int
    """Of each group."""
    labels: int = 1
    """Whose patterns an image shows; it counts for one of them."""
    by_group: bool = True
    """Whether all images of a group face the same way."""


_MIRROR_SETTINGS = (
    MirrorSetting("one image each", (1,) * 120, 1),
    MirrorSetting("one group each", (1,) * 4, 12),
    MirrorSetting("two groups each", (2,) * 4, 12),
    MirrorSetting("three groups each", (3,) * 4, 12),
    MirrorSetting("three groups each, images face their own way", (3,) * 4, 12, by_group=False),
    MirrorSetting("three images each", (3,) * 60, 1),
    MirrorSetting("ten groups each", (10,) * 4, 5),
    MirrorSetting("two of 60 images, 20 of one or two", (60, 60) + (1, 2) * 10, 1),
    MirrorSetting("three of 40 images", (40,) * 3, 1),
    MirrorSetting("no classes, 12 groups", (12,), 10),
    MirrorSetting("six labels, three on an image", (30,) * 6, 1, labels=3),
)


def draw_mirrored_data(
    generator: np.random.Generator, setting: MirrorSetting, *, symmetric: bool
) -> tuple[Array, Array, Array]:
    """Return images (N, 32, 32, 3), their labels (N) and groups (N)."""
    number = len(setting.groups)
    patterns_KSSC = generator.normal(size=(number, 8, 8, 3))
    images: list[Array] = []
    labels: list[int] = []
    groups: list[int] = []
    for label in np.repeat(np.arange(number), setting.groups):
        of_group = generator.normal(size=(8, 8, 3))
        turned = generator.random() < 1 / 2
        for _ in range(setting.images):
            turned = turned if setting.by_group else generator.random() < 1 / 2
            more = generator.permutation(np.delete(np.arange(number), label))[: setting.labels - 1]
            own = patterns_KSSC[[label, *more]].sum(0)
            seen = [own[:, ::-1] if turned and symmetric else own, of_group[:, :: 1 - 2 * turned]]
            noise = np.kron(generator.normal(size=(16, 16, 3)), np.ones((2, 2, 1))) / 2
            image = np.kron(sum(seen), np.ones((4, 4, 1))) + noise
            images.append((40 * image + 128).clip(0, 255).astype(np.uint8))
            labels.append(int(label))
            groups.append(len(groups) // setting.images)
    return np.stack(images), np.array(labels), np.array(groups)


def print_mirror(given: argparse.Namespace) -> None:
    """Print what the measurement answers."""
    trials = given.simulations or 40
    print(f"{trials} data sets in each setting: symmetric / not symmetric / not known")
    print("| classes | images | of symmetric data | of asymmetric data |")
    print("|---" * 4 + "|")
    for place, setting in enumerate(_MIRROR_SETTINGS):
        cells = []
        for symmetric in (True, False):
            generator = np.random.default_rng((place, symmetric))
            answers = [
                compare_mirror_images(
                    *draw_mirrored_data(generator, setting, symmetric=symmetric)
                ).answer
                for _ in range(trials)
            ]
            counts = [answers.count(each) for each in ("symmetric", "asymmetric", "unknown")]
            cells.append(" / ".join(map(str, counts)))
        images = sum(setting.groups) * setting.images
        print(f"| {setting.classes} | {images} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Simulate what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, simulate in (
        ("intervals", print_coverage),
        ("calibration", print_calibration),
        ("weights", print_weights),
        ("temperature_groups", print_temperature_groups),
        ("label_sets", print_label_sets),
        ("groups", print_groups),
        ("mirror", print_mirror),
    ):
        command = commands.add_parser(name)
        command.add_argument("simulations", type=int, nargs="?")
        command.set_defaults(simulate=simulate)
    commands.add_parser("gate").set_defaults(simulate=print_promotions)
    given = parser.parse_args()
    print(machine(), flush=True)
    given.simulate(given)


if __name__ == "__main__":
    main()
