"""What has shifted: predicted labels, confidence, and accuracy where labels are known.

These describe; only `drift_tests` decides. Their intervals hold for one check each, not for all.

A label often arrives after the check of its image. So the accuracy is one of the stream, not of a
check: it covers every arrived image that has a label now, each once, whichever check it was in. No
image takes part that trained, validated or tested the version. It is an estimate with an interval;
only the drift tests decide, so a label that is added or corrected spends nothing.

Shapes: M reference images, N images, K classes or labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from patchline.pipeline.data.near_duplicates.search import Progress
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, proportion
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.terminal_words import counted
from patchline.plugins.tools.monitor.arrived_images import ArrivedImages, Labels

Array = np.ndarray[Any, Any]
_Z = 1.959963984540054
_DIGITS = 5


class LabelShift(FrozenModel):
    """How often a class or label is predicted."""

    label: str
    before: MetricEstimate
    """Share of the reference images."""
    now: MetricEstimate
    """Share of the images of the check."""


class ConfidenceShift(FrozenModel):
    """The mean probability of the most probable class, or of the labels given or not given."""

    before: MetricEstimate
    now: MetricEstimate


class LabelledAccuracy(FrozenModel):
    """How often predictions are right, for the images of a stream whose labels are known.

    With several labels, a prediction is right if all labels of the image are. One for an image of a
    class that the model lacks is wrong.
    """

    now: MetricEstimate
    before: MetricEstimate
    """The accuracy on the reference's test images."""
    change: MetricEstimate
    """Accuracy now minus before, of independent images (Newcombe 1998, method 10)."""
    beyond_confidence: MetricEstimate
    """Accuracy minus mean confidence on the same images, paired: below 0, the model is
    overconfident about them."""
    of_own_classes: MetricEstimate | None = None
    """The accuracy without the images of classes that the model lacks; None if there is none."""
    other_classes: dict[str, int] = Field(default_factory=dict)
    """Number of images of each class or label that the model lacks."""


class Prediction(NamedTuple):
    """What a version predicted for an image."""

    classes: tuple[int, ...]
    """Indices of the predicted class or labels."""
    confidence: float


def label_shifts(names: Sequence[str], before_MK: Array, now_NK: Array) -> tuple[LabelShift, ...]:
    """Return the shift of each class or label, the largest first.

    Args:
        names: names of the classes or labels (K).
        before_MK: whether each of them is predicted for each reference image, as booleans (M, K).
        now_NK: the same of the images of the check.
    """
    shifts = [
        LabelShift(
            label=name,
            before=proportion(int(before_MK[:, place].sum()), len(before_MK)),
            now=proportion(int(now_NK[:, place].sum()), len(now_NK)),
        )
        for place, name in enumerate(names)
    ]
    return tuple(sorted(shifts, key=lambda each: -abs(each.now.value - each.before.value)))


def predict(probabilities_NK: Array, thresholds_K: Array | None) -> Array:
    """Return which classes or labels are predicted, as booleans (N, K).

    Args:
        probabilities_NK: probabilities of the images (N, K).
        thresholds_K: the threshold of each label (K) of a multi-label model; None if an image has
            one class.
    """
    values_NK = np.asarray(probabilities_NK, np.float64)
    if thresholds_K is not None:
        above_NK: Array = values_NK >= np.asarray(thresholds_K, np.float64)
        return above_NK
    one_NK = np.zeros(values_NK.shape, bool)
    one_NK[np.arange(len(values_NK)), values_NK.argmax(axis=1)] = True
    return one_NK


def confidence(probabilities_NK: Array, predicted_NK: Array, *, is_multi_label: bool) -> Array:
    """Return how probable the model holds its prediction of each image (N).

    With several labels, that all are right if they are independent.
    """
    values_NK = np.asarray(probabilities_NK, np.float64)
    if not is_multi_label:
        most_N: Array = values_NK.max(axis=1)
        return most_N
    right_N: Array = np.where(predicted_NK, values_NK, 1 - values_NK).prod(axis=1)
    return right_N


def predictions_of(package: PackagedModel, probabilities_NK: Array) -> list[Prediction]:
    """Return the prediction for each image."""
    chosen_NK = predict(probabilities_NK, package.thresholds_K)
    certain_N = confidence(probabilities_NK, chosen_NK, is_multi_label=package.is_multi_label)
    return [
        Prediction(tuple(np.flatnonzero(chosen_K).tolist()), round(float(certain), _DIGITS))
        for chosen_K, certain in zip(chosen_NK, certain_N, strict=True)
    ]


def mean_estimate(values_N: Array, low: float = 0.0, high: float = 1.0) -> MetricEstimate:
    """Return a mean with its interval by the normal distribution, within its possible range."""
    values = np.asarray(values_N, np.float64)
    mean, count = float(values.mean()), len(values)
    half = _Z * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else high - low
    return MetricEstimate(
        value=mean, low=max(low, mean - half), high=min(high, mean + half), n=count
    )


def compute_labelled_accuracy(
    right_N: Array, confidence_N: Array, right_before_M: Array
) -> LabelledAccuracy:
    """Return the accuracy of the labelled images of a stream, beside that of the reference.

    Args:
        right_N: whether each prediction is right.
        confidence_N: the model's confidence in each of these predictions, from 0 to 1.
        right_before_M: the same of the test images of the reference.
    """
    then = proportion(int(right_before_M.sum()), len(right_before_M))
    now = proportion(int(right_N.sum()), len(right_N))
    return LabelledAccuracy(
        now=now,
        before=then,
        change=_difference(then, now),
        beyond_confidence=mean_estimate(right_N.astype(np.float64) - confidence_N, low=-1.0),
    )


def _difference(before: MetricEstimate, now: MetricEstimate) -> MetricEstimate:
    """Return the difference of two independent proportions from their own intervals."""
    value = now.value - before.value
    below = math.hypot(now.value - now.low, before.high - before.value)
    above = math.hypot(now.high - now.value, before.value - before.low)
    return MetricEstimate(
        value=value, low=max(-1.0, value - below), high=min(1.0, value + above), n=now.n
    )


_MOST_NAMES = 5


class StreamAccuracy(NamedTuple):
    """The accuracy of a stream, or why it is not known."""

    accuracy: LabelledAccuracy | None
    unknown: str = ""


def stream_accuracy(
    package: PackagedModel,
    reference: ReferenceImages,
    arrived: ArrivedImages,
    predictions: Mapping[str, Prediction],
    on_progress: Progress,
) -> StreamAccuracy:
    """Return the accuracy on all images of a stream that have a label now.

    A prediction for an image of a class that the model lacks is wrong. If all labels are of such
    classes, they are probably no labels for this model, and the accuracy is not known.

    Args:
        package: the version's package.
        reference: the version's reference images.
        arrived: images of the stream.
        predictions: predictions for the images of all checks, by key; missing ones are computed.
        on_progress: called as images are predicted.
    """
    labels = {
        key: each
        for key, each in zip(arrived.keys, arrived.labels, strict=True)
        if each is not None
    }
    known = {
        **predictions,
        **_compute_predictions(package, arrived, labels.keys() - predictions, on_progress),
    }
    judged = [(known[key], each) for key, each in labels.items() if key in known]
    if not judged:
        return StreamAccuracy(None, arrived.labels_problem or "no image has a label")
    lacking = [_find_lacking(each, package) for _, each in judged]
    others = Counter(name for names in lacking for name in names)
    is_own_N = np.array([not names for names in lacking])
    if not is_own_N.any():
        return StreamAccuracy(
            None,
            f"the model has no class of {counted(len(judged), 'labelled image')}, such as "
            f"{', '.join(name for name, _ in others.most_common(_MOST_NAMES))}",
        )
    right_N = np.array(
        [{package.classes[k] for k in each.classes} == set(truth) for each, truth in judged]
    )
    right_N &= is_own_N
    confidence_N = np.array([each.confidence for each, _ in judged])
    accuracy = compute_labelled_accuracy(right_N, confidence_N, _right_before(package, reference))
    if not others:
        return StreamAccuracy(accuracy)
    own = proportion(int(right_N.sum()), int(is_own_N.sum()))
    update = {"of_own_classes": own, "other_classes": dict(others.most_common())}
    return StreamAccuracy(accuracy.model_copy(update=update))


def _compute_predictions(
    package: PackagedModel, arrived: ArrivedImages, keys: Collection[str], on_progress: Progress
) -> dict[str, Prediction]:
    """Return the predictions of images; without those that cannot be read any more."""
    places = [place for place, key in enumerate(arrived.keys) if key in keys]
    if not places:
        return {}
    computed = arrived.computed(places, on_progress)
    found = [arrived.keys[places[place]] for place in computed.positions]
    return dict(zip(found, predictions_of(package, computed.probabilities_NK), strict=True))


def _find_lacking(labels: Labels, package: PackagedModel) -> tuple[str, ...]:
    """Return the labels of an image that the model lacks."""
    lacking = tuple(name for name in labels if name not in package.classes)
    if package.is_multi_label or lacking or len(labels) == 1:
        return lacking
    return (" and ".join(labels) or "no label",)


def _right_before(package: PackagedModel, reference: ReferenceImages) -> Array:
    """Return whether each prediction for the test images of the reference is right."""
    chosen_MK = predict(reference.probabilities_MK, package.thresholds_K)
    if package.is_multi_label:
        truth_MK = reference.labels.astype(bool)
    else:
        truth_MK = np.eye(len(package.classes), dtype=bool)[reference.labels]
    right_M: Array = (chosen_MK == truth_MK).all(axis=1)[reference.is_test_M]
    return right_M
