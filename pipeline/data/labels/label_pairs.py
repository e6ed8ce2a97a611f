"""Which image has which label, as pairs of numbers: one form for one label and for sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.label_sets import Task, labels_in

Integers = np.ndarray[Any, np.dtype[np.int64]]


class LabelPairs(NamedTuple):
    """One entry for each label of each image, in the order of the images."""

    images: Integers
    """Number of the image (P,)."""
    labels: Integers
    """Number of the label (P,), an index of `names`."""
    names: tuple[str, ...]
    """All labels, sorted."""

    def counts(self) -> dict[str, int]:
        """Return the number of images with each label."""
        images = np.bincount(self.labels, minlength=len(self.names)).tolist()
        return dict(zip(self.names, images, strict=True))

    def images_of(self, name: str) -> Integers:
        """Return the numbers of the images with a label."""
        if name not in self.names:
            return np.zeros(0, np.int64)
        own: Integers = self.images[self.labels == self.names.index(name)]
        return own


def label_pairs(texts: Iterable[str], task: Task) -> LabelPairs:
    """Return the labels of images.

    Args:
        texts: the column `label` of a manifest.
        task: whether a text is the name of a class, or a set of labels.
    """
    import pandas as pd

    codes, unique = pd.factorize(np.array(list(texts), dtype=object))
    sets = [labels_in(text, task) for text in unique.tolist()]
    names = sorted({name for each in sets for name in each})
    number_of = {name: number for number, name in enumerate(names)}
    sizes = np.array([len(each) for each in sets], np.int64)
    flat = np.array([number_of[name] for each in sets for name in each], np.int64)
    starts = np.cumsum(sizes) - sizes
    own = sizes[codes] if sets else np.zeros(0, np.int64)
    images = np.repeat(np.arange(len(codes)), own)
    within = np.arange(len(images)) - np.repeat(np.cumsum(own) - own, own)
    labels = flat[np.repeat(starts[codes] if sets else own, own) + within]
    return LabelPairs(images, labels, tuple(names))


def are_known(
    texts: Iterable[str], names: Collection[str], task: Task
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return of which images (N) all labels are among the names."""
    return np.array([set(names).issuperset(labels_in(text, task)) for text in texts], np.bool_)
