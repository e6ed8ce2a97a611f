"""The metrics of a multi-label classifier with their intervals, and those of each label.

A label that no image has is unknown: it has no average precision and no F1, and is in no mean.

Two classifiers on the same images are compared by a bootstrap over images. Each draw takes images
with replacement, with the labels and the answers of both models, and has a difference of the metric
(Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapters 13 and 16); images of one
group are drawn together (`resampling.py`). `python -m benchmarks.statistical_methods label_sets`,
and `groups`, simulate how often equal models pass, and the power.

Shapes: N images, K labels, P pairs of an image and a label, R draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.metrics import curve_areas
from patchline.pipeline.evaluation.metrics.calibration import (
    ClassShare,
    TopProbabilities,
    calibration_error_of,
    class_shares,
)
from patchline.pipeline.evaluation.metrics.intervals import (
    ImageGroups,
    MetricEstimate,
    inflation,
    precision_recall_f1,
    share,
    with_effective_size,
)
from patchline.pipeline.evaluation.metrics.losses import gamma_bounds, loss_inflation
from patchline.pipeline.evaluation.metrics.mean_average_precision import (
    find_ranked_labels,
    mean_average_precision,
)
from patchline.pipeline.evaluation.metrics.multi_label.resampling import (
    FEWEST_DRAWS,
    LabelRanking,
    Sample,
    compute_drawn_map,
    draws_for,
    mean_of_known,
    rankings_of,
)
from patchline.pipeline.evaluation.metrics.names import MULTI_LABEL_METRICS
from patchline.pipeline.evaluation.metrics.row_pieces import row_slices
from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
_PRIOR_IMAGES = 8.0


class LabelMetrics(FrozenModel):
    """The metrics of one label; None where no image tells them."""

    name: str
    images: int
    """Number of images that have it."""
    predicted: int
    """Number of images for which it is predicted."""
    threshold: float
    """Probability from which on the label is predicted."""
    average_precision: MetricEstimate | None
    """Mean precision at the probability of each image that has it."""
    roc_auc: MetricEstimate | None
    """Probability that an image with the label ranks above one without it."""
    precision: MetricEstimate | None
    """Share of the predictions of this label that are right."""
    recall: MetricEstimate | None
    """Share of the images with this label for which it is predicted."""
    f1: MetricEstimate | None
    """Harmonic mean of both; n counts the images that have it or for which it is predicted."""
    expected: ClassShare | None = None
    """Its share of the images beside its mean probability; None if it was not computed."""


class _LabelCounts(NamedTuple):
    """Images with each label, and for which it is predicted, rightly: (K), or (R, K) of draws."""

    hits: Array
    images: Array
    predicted: Array

    def f1(self) -> Array:
        both = self.images + self.predicted
        return _share(2 * self.hits, both, self.images)

    def precision(self) -> Array:
        precision: Array = np.where(
            self.images > 0, self.hits / np.maximum(self.predicted, 1), np.nan
        )
        return precision

    def recall(self) -> Array:
        return _share(self.hits, self.images, self.images)

    def micro_f1(self) -> Array:
        both = (self.images + self.predicted).sum(axis=-1)
        micro: Array = 2 * self.hits.sum(axis=-1) / np.maximum(both, 1)
        return micro


def _share(part: Array, whole: Array, images: Array) -> Array:
    """Return part / whole; NaN for a label without images."""
    share: Array = np.where(images > 0, part / np.maximum(whole, 1), np.nan)
    return share


def multi_label_metrics(
    probabilities_NK: Array,
    labels_NK: Array,
    predicted_NK: Array,
    *,
    groups: ImageGroups | None = None,
    seed: int = 0,
) -> dict[str, MetricEstimate]:
    """Return the metrics with their intervals, by the keys of `MULTI_LABEL_METRICS`.

    What is unknown is left out: mAP if no label is on some of the images and not on others, its
    micro average if all pairs of image and label are equal, and without any label also F1,
    precision and recall of the labels.

    Values are those of scikit-learn, but for labels without images, which it counts as 0 in means,
    and for the average precision of labels of all images, which it counts as 1 (`ranked_labels`):
    these are left out here. Variances are those of 1,000 bootstrap draws of images, fewer where
    these are many (`draws_for`), which near the ends and for few images are joined by that of a
    proportion; the interval is that of a proportion with this variance.

    Args:
        probabilities_NK: calibrated probabilities.
        labels_NK: 1 where an image has a label, else 0.
        predicted_NK: 1 where a label is predicted, else 0.
        groups: the groups that the images form, which are then drawn together; None if the images
            are independent.
        seed: the seed of the draws.

    Raises:
        DataError: if there are no images.
    """
    n, num_labels = labels_NK.shape
    if n == 0:
        raise DataError("There are 0 images to evaluate. Choose a split that has images.")
    labels_NK, predicted_NK = labels_NK.astype(np.uint8), predicted_NK.astype(np.uint8)
    rankings = rankings_of(probabilities_NK, labels_NK)
    counts = _counts(labels_NK, predicted_NK)
    by_image = {
        "samples_f1": f1_of_images(labels_NK, predicted_NK),
        "ranking_loss": ranking_losses(probabilities_NK, labels_NK),
        "coverage_error": coverages(probabilities_NK, labels_NK),
    }
    values = {
        **(_of_counts(counts) if labels_NK.any() else {}),
        **{key: float(values_N.mean()) for key, values_N in by_image.items()},
    }
    sample = Sample(groups, draws_for(n, num_labels), seed)
    drawn, precisions_R = _draw_metrics(rankings, labels_NK, predicted_NK, by_image, sample)
    found = {
        **{
            key: _estimate(
                value, drawn[key], n, sample, num_labels if key == "coverage_error" else 1.0
            )
            for key, value in values.items()
        },
        "exact_match": share(exact_matches(labels_NK, predicted_NK), groups),
        "log_loss": _log_loss(log_losses_of_images(probabilities_NK, labels_NK), groups),
        "ece": calibration_error_of(pairs(probabilities_NK, labels_NK, groups)),
    }
    if rankings:
        variance = sample.variance(precisions_R)
        found["mAP"] = _mean_average_precision(probabilities_NK, labels_NK, groups, variance)
    if labels_NK.any() and not labels_NK.all():
        found["micro_mAP"] = _micro(probabilities_NK, labels_NK, sample)
    return {key: found[key] for key in MULTI_LABEL_METRICS if key in found}


def by_label(
    probabilities_NK: Array,
    labels_NK: Array,
    predicted_NK: Array,
    names: Sequence[str],
    thresholds: Sequence[float],
    groups: ImageGroups | None = None,
) -> tuple[LabelMetrics, ...]:
    """Return the metrics of every label, in the order of the K names."""
    labels_NK, predicted_NK = labels_NK.astype(np.uint8), predicted_NK.astype(np.uint8)
    _, images, predicted = _counts(labels_NK, predicted_NK)
    true, said = (list(map(np.flatnonzero, each.T)) for each in (labels_NK, predicted_NK))
    shares = precision_recall_f1(true, said, groups)
    expected = class_shares(probabilities_NK, labels_NK, groups)
    return tuple(
        LabelMetrics(
            name=name,
            images=int(images[k]),
            predicted=int(predicted[k]),
            threshold=float(thresholds[k]),
            average_precision=curve_areas.average_precision(
                probabilities_NK[:, k], labels_NK[:, k] > 0, groups
            ),
            roc_auc=curve_areas.roc_auc(probabilities_NK[:, k], labels_NK[:, k] > 0, groups),
            precision=precision if predicted[k] else None,
            recall=recall if images[k] else None,
            f1=f1 if images[k] else None,
            expected=expected[k],
        )
        for k, (name, precision, recall, f1) in enumerate(zip(names, *shares, strict=True))
    )


def label_set_map(
    probabilities_NK: Array,
    labels_NK: Array,
    *,
    groups: ImageGroups | None = None,
    seed: int = 0,
) -> MetricEstimate:
    """Return mAP with its interval alone, which `multi_label_metrics` returns among others.

    Args:
        probabilities_NK: probabilities, or other scores.
        labels_NK: 1 where an image has a label, else 0; one of them is ranked (`ranked_labels`).
        groups: the groups that the images form; None if the images are independent.
        seed: the seed of the draws.
    """
    n, num_labels = labels_NK.shape
    rankings = rankings_of(probabilities_NK, labels_NK)
    sample = Sample(groups, draws_for(n, num_labels), seed)
    drawn = [compute_drawn_map(rankings, counts_NR) for counts_NR in sample.drawn(n)]
    variance = sample.variance(np.concatenate(drawn))
    return _mean_average_precision(probabilities_NK, labels_NK, groups, variance)


def macro_f1(labels_NK: Array, predicted_NK: Array) -> float:
    """Return the mean F1 over the labels that some image has; NaN if none has a label."""
    return float(mean_of_known(_counts(labels_NK, predicted_NK).f1(), axis=0))


def samples_f1(
    labels_NK: Array, predicted_NK: Array, groups: ImageGroups | None = None
) -> MetricEstimate:
    """Return the mean F1 of the labels of each image, with its interval."""
    f1_N = f1_of_images(labels_NK.astype(np.uint8), predicted_NK.astype(np.uint8))
    n, variance = len(f1_N), float(f1_N.var()) / len(f1_N)
    factor = inflation(f1_N, groups)
    variance = math.inf if math.isinf(factor) else variance * factor
    return _of_variance(float(f1_N.mean()), variance, n, groups.count if groups else n)


def compute_drawn_macro_f1(weights_RN: Array, labels_NK: Array, predicted_NK: Array) -> Array:
    """Return the macro F1 of each draw (R), given how often it has each image (R, N) in float32."""
    parts = _parts(labels_NK.astype(np.uint8), predicted_NK.astype(np.uint8))
    counts = _LabelCounts(*(weights_RN @ part.astype(np.float32) for part in parts))
    return mean_of_known(counts.f1(), axis=-1)


def pairs(
    probabilities_NK: Array, labels_NK: Array, groups: ImageGroups | None
) -> TopProbabilities:
    """Return all pairs of image and label, each with its probability and whether it is right."""
    if groups is not None:
        groups = ImageGroups(np.repeat(groups.codes_N, labels_NK.shape[1]), groups.count)
    confidence_P = probabilities_NK.astype(np.float64).ravel()
    return TopProbabilities(confidence_P, labels_NK.ravel() > 0, groups)


def _parts(labels_NK: Array, predicted_NK: Array) -> tuple[Array, Array, Array]:
    return labels_NK & predicted_NK, labels_NK, predicted_NK


def _counts(labels_NK: Array, predicted_NK: Array) -> _LabelCounts:
    parts = _parts(labels_NK, predicted_NK)
    return _LabelCounts(*(part.sum(axis=0, dtype=np.int64) for part in parts))


def _of_counts(counts: _LabelCounts) -> dict[str, Any]:
    """Return the metrics of counts: numbers, or arrays (R) of draws."""
    macro = {"f1": counts.f1(), "precision": counts.precision(), "recall": counts.recall()}
    return {
        **{f"macro_{key}": mean_of_known(values, axis=-1) for key, values in macro.items()},
        "micro_f1": counts.micro_f1(),
    }


def _draw_metrics(
    rankings: list[LabelRanking],
    labels_NK: Array,
    predicted_NK: Array,
    by_image: dict[str, Array],
    sample: Sample,
) -> tuple[dict[str, Array], Array]:
    """Return each metric of R draws, and mAP of them."""
    n = len(labels_NK)
    parts = [part.astype(np.float32) for part in _parts(labels_NK, predicted_NK)]
    means = np.column_stack(list(by_image.values()))
    drawn: list[dict[str, Array]] = []
    precisions = []
    for counts_NR in sample.drawn(n):
        weights_RN = np.ascontiguousarray(counts_NR.T, dtype=np.float32)
        some = _LabelCounts(*(weights_RN @ part for part in parts))
        sizes = weights_RN.sum(axis=1, keepdims=True)  # of groups, draws may differ in size
        of_images = (weights_RN @ means) / sizes
        drawn.append({**_of_counts(some), **dict(zip(by_image, of_images.T, strict=True))})
        precisions.append(compute_drawn_map(rankings, counts_NR))
    together = {key: np.concatenate([each[key] for each in drawn]) for key in drawn[0]}
    return together, np.concatenate(precisions)


def _mean_average_precision(
    probabilities_NK: Array, labels_NK: Array, groups: ImageGroups | None, variance: float
) -> MetricEstimate:
    """Return mAP; its variance is that of the draws, joined by that of proportions.

    With groups, the formula's variance is that of as few positives as there are groups with some.
    """
    areas = [
        curve_areas.areas_of_class(
            probabilities_NK[:, k].astype(np.float64), np.flatnonzero(labels_NK[:, k]), groups
        )[1][0]
        for k in np.flatnonzero(find_ranked_labels(labels_NK))
    ]
    mean = curve_areas.mean_area(
        areas,
        variance=sum(area.variance for area in areas) / len(areas) ** 2,
        squares=variance,
        freedom=sum(max(area.freedom, 0) for area in areas),
        n=len(labels_NK),
        is_unknown=math.isinf(variance),
    )
    return curve_areas.estimates([mean])[0]


def _micro(probabilities_NK: Array, labels_NK: Array, sample: Sample) -> MetricEstimate:
    """Return the average precision of all pairs, with draws of images."""
    n, num_labels = labels_NK.shape
    order = LabelRanking.of(probabilities_NK.ravel(), labels_NK.ravel())
    fewer = sample._replace(draws=sample.draws * FEWEST_DRAWS // 1000)
    drawn = [
        order.drawn(np.repeat(some, num_labels, axis=0)) for some in fewer.drawn(n, num_labels)
    ]
    return _estimate(order.average_precision, np.concatenate(drawn), n, sample)


def _estimate(
    value: float, drawn_R: Array, n: int, sample: Sample, most: float = 1.0
) -> MetricEstimate:
    """Return a metric between 0 and `most` with the interval of a proportion of equal variance.

    The variance of few images is joined by that of a proportion of them, drawn a little from 0 and
    1, so that no error in all of them is not taken for certainty.
    """
    return _of_variance(value, sample.variance(drawn_R), n, sample.units(n), most)


def _of_variance(
    value: float, variance: float, n: int, units: int, most: float = 1.0
) -> MetricEstimate:
    """Return the interval of a metric whose variance over samples of so many units is known.

    Args:
        value: the metric.
        variance: variance of the metric; infinite if nothing is known.
        n: number of images.
        units: number of images, or of their groups.
        most: the largest possible value.
    """
    share, weight = float(value) / most, units / (units + _PRIOR_IMAGES)
    shrunk = (units * share + 0.5) / (units + 1)
    by_chance = shrunk * (1 - shrunk)
    joined = weight * variance / most**2 + (1 - weight) * by_chance / units
    spread = weight * share * (1 - share) + (1 - weight) * by_chance
    return with_effective_size(
        float(value), n=n, effective_n=spread / joined, ends=(0.0, float(most))
    )


def _log_loss(losses_N: Array, groups: ImageGroups | None) -> MetricEstimate:
    value, n = float(losses_N.mean()), len(losses_N)
    variance = float(losses_N.var(ddof=1)) / n if n > 1 else value**2
    variance *= loss_inflation(losses_N, groups)
    low, high = gamma_bounds(value, variance, 0.0)
    return MetricEstimate(value=value, low=min(low, value), high=max(high, value), n=n)


_LEAST_PROBABILITY = 1e-15


def f1_of_images(labels_NK: Array, predicted_NK: Array) -> Array:
    """Return the F1 of each image's labels (N); 1 where it has none and none is predicted."""
    hits_N = (labels_NK & predicted_NK).sum(axis=1, dtype=np.int64)
    both_N = labels_NK.sum(axis=1, dtype=np.int64) + predicted_NK.sum(axis=1, dtype=np.int64)
    f1_N: Array = np.where(both_N > 0, 2 * hits_N / np.maximum(both_N, 1), 1.0)
    return f1_N


def exact_matches(labels_NK: Array, predicted_NK: Array) -> Array:
    """Return whether all labels of each image are right (N)."""
    right_N: Array = (labels_NK == predicted_NK).all(axis=1)
    return right_N


def ranking_losses(probabilities_NK: Array, labels_NK: Array) -> Array:
    """Return the share of an image's pairs of labels in the wrong order (N); ties are wrong.

    A pair is one label that the image has and one that it has not. Without pairs it is 0, as in
    Tsoumakas, Katakis and Vlahavas (2010, Mining Multi-label Data) and scikit-learn.
    """
    losses_N = np.zeros(len(labels_NK))
    for rows in row_slices(labels_NK.shape):
        scores, has = probabilities_NK[rows].astype(np.float64), labels_NK[rows].astype(bool)
        not_above = _ranks_in_rows(scores)
        of_others = _ranks_in_rows(np.where(has, np.inf, scores))
        wrong = np.where(has, 0, not_above - of_others).sum(axis=1)
        pairs = has.sum(axis=1) * (~has).sum(axis=1)
        losses_N[rows] = wrong / np.maximum(pairs, 1)
    return losses_N


def _ranks_in_rows(values_NK: Array) -> Array:
    """Return the rank of each value in its row, from 1; equal ones share the highest (N, K)."""
    return pd.DataFrame(values_NK).rank(axis=1, method="max").to_numpy()


def coverages(probabilities_NK: Array, labels_NK: Array) -> Array:
    """Return how many labels are as probable as the least probable one that is right (N).

    An image without labels needs none: 0.
    """
    least_N = np.where(labels_NK > 0, probabilities_NK, np.inf).min(axis=1)
    needed_N: Array = (probabilities_NK >= least_N[:, None]).sum(axis=1)
    return needed_N


def log_losses_of_images(probabilities_NK: Array, labels_NK: Array) -> Array:
    """Return the binary cross-entropy of each image, mean over the labels (N)."""
    losses_N = np.empty(len(labels_NK))
    for rows in row_slices(labels_NK.shape):
        chance = probabilities_NK[rows].astype(np.float64)
        true = np.where(labels_NK[rows] > 0, chance, 1 - chance)
        losses_N[rows] = -np.log(np.maximum(true, _LEAST_PROBABILITY)).mean(axis=1)
    return losses_N


PAIRED = ("mAP", "macro_f1")
"""The metrics that are compared."""


class PairedMetric(FrozenModel):
    """One metric of two classifiers on the same images, a and b."""

    a: float
    b: float
    difference: MetricEstimate
    """The metric of b minus that of a, with the bootstrap's 95% percentile interval; with groups,
    its t interval."""
    p_value: float
    """Two-sided: twice the share of the draws on the other side of 0, or at it; with groups, of a t
    test with their standard deviation."""
    draws: int
    """Number of draws; without groups, the p-value is at least 2 / (draws + 1)."""
    groups: int | None = None
    """Number of groups that the images form; None if these are independent."""


class ThresholdedScores(NamedTuple):
    """What a classifier says about N images."""

    probabilities_NK: Array
    predicted_NK: Array
    """1 where a label is predicted, else 0."""


def compare_metrics(
    labels_NK: Array,
    a: ThresholdedScores,
    b: ThresholdedScores,
    *,
    groups: ImageGroups | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> dict[str, PairedMetric]:
    """Compare two classifiers, by the names of `PAIRED`.

    Of what is unknown, the interval spans its whole range and the p-value is 1: without images, if
    none has a label, and for mAP if no label is on some images and not on others.

    Args:
        labels_NK: 1 where an image has a label, else 0.
        a: the answers of one classifier.
        b: those of the other, about the same images.
        groups: the groups that the images form; None if the images are independent.
        draws: R, the number of draws; by default 1,000, fewer with many images and labels.
        seed: the seed of the draws.
    """
    if not labels_NK.any():
        return dict.fromkeys(PAIRED, _unknown(labels_NK, groups))
    sample = Sample(groups, draws or draws_for(*labels_NK.shape), seed)
    of_f1: list[Array] = []
    for counts_NR in sample.drawn(len(labels_NK)):
        weights_RN = np.ascontiguousarray(counts_NR.T, dtype=np.float32)
        before_R, now_R = (
            compute_drawn_macro_f1(weights_RN, labels_NK, each.predicted_NK) for each in (a, b)
        )
        of_f1.append(now_R - before_R)
    scores = [each.probabilities_NK for each in (a, b)]
    f1 = [macro_f1(labels_NK, each.predicted_NK) for each in (a, b)]
    return {
        "mAP": compare_map(labels_NK, *scores, groups=groups, draws=draws, seed=seed),
        "macro_f1": _compare(sample, f1[0], f1[1], np.concatenate(of_f1), len(labels_NK)),
    }


def compare_map(
    labels_NK: Array,
    a_NK: Array,
    b_NK: Array,
    *,
    groups: ImageGroups | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> PairedMetric:
    """Compare the mAP of two classifiers by their scores, as `compare_metrics` does.

    Args:
        labels_NK: 1 where an image has a label, else 0.
        a_NK: scores of one classifier.
        b_NK: those of the other, for the same images.
        groups: the groups that the images form; None if the images are independent.
        draws: R, the number of draws; by default 1,000, fewer with many images and labels.
        seed: the seed of the draws.
    """
    a, b = (mean_average_precision(each, labels_NK).value for each in (a_NK, b_NK))
    if a is None or b is None:
        return _unknown(labels_NK, groups)
    sample = Sample(groups, draws or draws_for(*labels_NK.shape), seed)
    changes = _draw_changes(labels_NK, a_NK, b_NK, sample)
    return _compare(sample, a, b, changes, len(labels_NK))


def _unknown(labels_NK: Array, groups: ImageGroups | None) -> PairedMetric:
    nothing = MetricEstimate(value=0.0, low=-1.0, high=1.0, n=len(labels_NK))
    count = groups.count if groups else None
    return PairedMetric(a=0.0, b=0.0, difference=nothing, p_value=1.0, draws=0, groups=count)


def _compare(sample: Sample, a: float, b: float, differences_R: Array, images: int) -> PairedMetric:
    """Return the comparison, given the difference of each draw."""
    known = differences_R[~np.isnan(differences_R)]
    if not len(known):
        known = np.zeros(1)
    value = b - a
    low, high = sample.interval(value, known, (-1.0, 1.0))
    return PairedMetric(
        a=a,
        b=b,
        difference=MetricEstimate(value=value, low=low, high=high, n=images),
        p_value=p_value_of(value, known, sample),
        draws=len(known),
        groups=sample.groups.count if sample.groups else None,
    )


def p_value_of(value: float, differences_R: Array, sample: Sample) -> float:
    """Return the two-sided p-value of a difference, given that of each draw.

    With groups it is that of a t test, and no less than that of an exact test of so many groups.
    """
    from scipy.special import stdtr

    if sample.groups is None:
        return two_sided(differences_R)
    count, error = sample.groups.count, sample.standard_error(differences_R)
    if count == 1:  # says nothing
        return 1.0
    p_value = 2 * float(stdtr(count - 1, -abs(value) / error)) if error else float(value == 0)
    return max(p_value, 2.0 ** (1 - count))


def _draw_changes(labels_NK: Array, a_NK: Array, b_NK: Array, sample: Sample) -> Array:
    """Return the difference in mAP of each draw (R)."""
    a, b = (rankings_of(each, labels_NK) for each in (a_NK, b_NK))
    changes = [
        compute_drawn_map(b, counts_NR) - compute_drawn_map(a, counts_NR)
        for counts_NR in sample.drawn(len(labels_NK))
    ]
    return np.concatenate(changes)


def two_sided(differences_R: Array) -> float:
    """Return twice the share of the known draws on the other side of 0, or at it."""
    known = differences_R[~np.isnan(differences_R)]
    beyond = int(min((known <= 0).sum(), (known >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(known) + 1))
