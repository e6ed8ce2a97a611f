"""How often a version is right about the images of a stream that people have labelled.

A label often arrives after the check of its image. So the accuracy is one of the stream, not of a
check: it covers every arrived image that has a label now, each once, whichever check it was in. No
image takes part that trained, validated or tested the version. It is an estimate with an interval;
only the drift tests decide, so a label that is added or corrected spends nothing.

Shapes: M reference images, N images, K classes or labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from patchline.pipeline.labels import label_sets
from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.monitoring.arrived_images import ArrivedImages, Progress
from patchline.pipeline.monitoring.shifts import (
    LabelledAccuracy,
    Prediction,
    labelled_accuracy,
    predicted,
    predictions_of,
)
from patchline.pipeline.packaging.packaged_model import PackagedModel

Array = np.ndarray[Any, Any]


def stream_accuracy(
    package: PackagedModel,
    reference: ReferenceImages,
    arrived: ArrivedImages,
    predictions: Mapping[str, Prediction],
    on_progress: Progress,
) -> LabelledAccuracy | None:
    """Return the accuracy on all images of a stream that have a label now; None if none has one.

    Args:
        package: of the version.
        reference: of the version.
        arrived: images of the stream.
        predictions: of the images of all checks, by key; what is missing is computed.
        on_progress: called as images are predicted.
    """
    labelled = [place for place, label in enumerate(arrived.labels) if label]
    missing = [place for place in labelled if arrived.keys[place] not in predictions]
    known = dict(predictions)
    if missing:
        computed = arrived.computed(missing, on_progress)
        keys = [arrived.keys[missing[place]] for place in computed.positions]
        again = predictions_of(package, computed.probabilities_NK)
        known.update(zip(keys, again, strict=True))
    judged = [
        (known[arrived.keys[place]], set(_names(arrived.labels[place], package)))
        for place in labelled
        if arrived.keys[place] in known
    ]
    if not judged:
        return None
    right = [{package.classes[k] for k in each.classes} == truth for each, truth in judged]
    right_M = _right_before(package, reference)
    return labelled_accuracy(
        np.array(right),
        np.array([each.confidence for each, _ in judged]),
        int(right_M.sum()),
        len(right_M),
    )


def _names(label: str, package: PackagedModel) -> Iterator[str]:
    yield from label_sets.decoded(label) if package.is_multi_label else (label,)


def _right_before(package: PackagedModel, reference: ReferenceImages) -> Array:
    """Return whether each prediction for the test images of the reference is right."""
    chosen_MK = predicted(reference.probabilities_MK, package.thresholds_K)
    if package.is_multi_label:
        truth_MK = reference.labels.astype(bool)
    else:
        truth_MK = np.eye(len(package.classes), dtype=bool)[reference.labels]
    right_M: Array = (chosen_MK == truth_MK).all(axis=1)[reference.is_test_M]
    return right_M
