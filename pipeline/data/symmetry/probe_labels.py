"""One label for each image, for probes that tell classes apart."""

from __future__ import annotations

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_pairs import label_pairs
from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task
from patchline.pipeline.data.manifests.same_images import FILE, column_of

NONE = "no label"
"""Stands for images without a label, which may differ from their mirror images, too."""


def with_one_label(rows: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Return images with one label each: of a set, the one that the fewest images have so far.

    So an image counts once, and every label has images. A probe of whole sets would find hardly
    any image of the same one. The contents of the images decide, not their order.

    Args:
        rows: usable images.
        task: whether an image has one class, or a set of labels.
    """
    if task == SINGLE_LABEL:
        return rows
    pairs = label_pairs(rows["label"], task)
    own = np.split(pairs.labels, np.searchsorted(pairs.images, np.arange(1, len(rows))))
    counts = [0] * len(pairs.names)
    labels = np.full(len(rows), NONE, dtype=object)
    for row in np.argsort(column_of(rows, FILE).to_numpy(str), kind="stable").tolist():
        if len(own[row]):
            label = min(own[row].tolist(), key=lambda each: (counts[each], each))
            counts[label] += 1
            labels[row] = pairs.names[label]
    return rows.assign(label=labels)
