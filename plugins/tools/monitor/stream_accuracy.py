"""How often a version is right about the images of a stream that people have labelled.

A label often arrives after the check of its image. So the accuracy is one of the stream, not of a
check: it covers every arrived image that has a label now, each once, whichever check it was in. No
image takes part that trained, validated or tested the version. It is an estimate with an interval;
only the drift tests decide, so a label that is added or corrected spends nothing.

Shapes: M reference images, N images, K classes or labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.evaluation.metrics.intervals import proportion
from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.terminal_words import counted
from patchline.plugins.tools.monitor.arrived_images import ArrivedImages, Progress
from patchline.plugins.tools.monitor.given_labels import Labels
from patchline.plugins.tools.monitor.shifts import (
    LabelledAccuracy,
    Prediction,
    labelled_accuracy,
    predicted,
    predictions_of,
)

Array = np.ndarray[Any, Any]
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
        package: of the version.
        reference: of the version.
        arrived: images of the stream.
        predictions: of the images of all checks, by key; what is missing is computed.
        on_progress: called as images are predicted.
    """
    labels = {
        key: each
        for key, each in zip(arrived.keys, arrived.labels, strict=True)
        if each is not None
    }
    known = {**predictions, **_computed(package, arrived, labels.keys() - predictions, on_progress)}
    judged = [(known[key], each) for key, each in labels.items() if key in known]
    if not judged:
        return StreamAccuracy(None, arrived.labels_problem or "no image has a label")
    lacking = [_lacking(each, package) for _, each in judged]
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
    accuracy = labelled_accuracy(right_N, confidence_N, _right_before(package, reference))
    if not others:
        return StreamAccuracy(accuracy)
    own = proportion(int(right_N.sum()), int(is_own_N.sum()))
    update = {"of_own_classes": own, "other_classes": dict(others.most_common())}
    return StreamAccuracy(accuracy.model_copy(update=update))


def _computed(
    package: PackagedModel, arrived: ArrivedImages, keys: Collection[str], on_progress: Progress
) -> dict[str, Prediction]:
    """Return the predictions of images; without those that cannot be read any more."""
    places = [place for place, key in enumerate(arrived.keys) if key in keys]
    if not places:
        return {}
    computed = arrived.computed(places, on_progress)
    found = [arrived.keys[places[place]] for place in computed.positions]
    return dict(zip(found, predictions_of(package, computed.probabilities_NK), strict=True))


def _lacking(labels: Labels, package: PackagedModel) -> tuple[str, ...]:
    """Return the labels of an image that the model lacks."""
    lacking = tuple(name for name in labels if name not in package.classes)
    if package.is_multi_label or lacking or len(labels) == 1:
        return lacking
    return (" and ".join(labels) or "no label",)


def _right_before(package: PackagedModel, reference: ReferenceImages) -> Array:
    """Return whether each prediction for the test images of the reference is right."""
    chosen_MK = predicted(reference.probabilities_MK, package.thresholds_K)
    if package.is_multi_label:
        truth_MK = reference.labels.astype(bool)
    else:
        truth_MK = np.eye(len(package.classes), dtype=bool)[reference.labels]
    right_M: Array = (chosen_MK == truth_MK).all(axis=1)[reference.is_test_M]
    return right_M
