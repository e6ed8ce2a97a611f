"""What corrupted images cost a model, by the main metric of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.multi_label.label_set_robustness import (
    LabelSetRobustness,
    label_set_robustness,
)
from patchline.pipeline.evaluation.robustness import (
    CorruptionJob,
    Robustness,
    Scores,
    measured_robustness,
)

Array = np.ndarray[Any, Any]


def robustness_of(
    scores: Scores,
    images_NHWC: Array,
    labels: Sequence[str],
    job: CorruptionJob,
    *,
    is_multi_label: bool,
    on_progress: Callable[[int, int], None] | None = None,
    groups: ImageGroups | None = None,
) -> Robustness | LabelSetRobustness | None:
    """Predict images as they are and in each corrupted version.

    Args:
        scores: the model.
        images_NHWC: uint8, as the model takes them.
        labels: of the images, as a manifest has them.
        job: has the classes and the seed.
        is_multi_label: whether an image has a set of labels: mAP is measured instead of accuracy.
        on_progress: called with the number of predicted images, and of all.
        groups: of the images; None if these are independent.

    Returns:
        None if images have sets of labels, and these are all the same.
    """
    if is_multi_label:
        labels_NK = label_sets.matrix(labels, job.classes)
        return label_set_robustness(scores, images_NHWC, labels_NK, job.seed, on_progress, groups)
    number = {name: position for position, name in enumerate(job.classes)}
    labels_N = np.array([number[label] for label in labels], np.int64)
    return measured_robustness(scores, images_NHWC, labels_N, job.seed, on_progress, groups)
