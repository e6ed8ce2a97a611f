"""Labels of images as text and as numbers, and what the labels of a task are called in sentences.

An image of multi-label data has a set of labels, which may be empty. The manifest's column `label`
holds it as a JSON list of the sorted names, `["circle", "red"]`, so that equal sets are equal
texts; what is not known is the empty text, as for an image without a class.

Shapes: N images, K classes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Integers = np.ndarray[Any, np.dtype[np.int64]]


Task = Literal["single_label", "multi_label"]
"""What a model answers: one class for each image, or a set of classes."""
SINGLE_LABEL: Task = "single_label"
MULTI_LABEL: Task = "multi_label"


def encode_labels(labels: Iterable[str]) -> str:
    """Return a set of labels as text; each label once, sorted."""
    return json.dumps(sorted(set(labels)), ensure_ascii=False)


def decode_labels(text: str) -> tuple[str, ...]:
    """Return the labels in a text that `encode_labels` has made; none for the empty text.

    Raises:
        ValueError: if it is no list of names.
    """
    if not text:
        return ()
    labels = json.loads(text)
    if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels):
        raise ValueError(f"{text!r} is not a list of labels")
    return tuple(labels)


def labels_in(text: str, task: Task) -> tuple[str, ...]:
    """Return the labels in a text of a manifest: the text itself, if an image has one label."""
    return decode_labels(text) if task == MULTI_LABEL else (text,)


def matrix(texts: Sequence[str], classes: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the labels as zeros and ones (N, K).

    Args:
        texts: the label sets of N images, each as `encode_labels` writes it.
        classes: names of the K columns.

    Raises:
        KeyError: if a label is not among the classes.
    """
    import numpy as np

    index = {name: number for number, name in enumerate(classes)}
    columns = {text: [index[label] for label in decode_labels(text)] for text in set(texts)}
    found = np.zeros((len(texts), len(classes)), np.uint8)
    for row, text in enumerate(texts):
        found[row, columns[text]] = 1
    return found


def strata(sets_NK: np.ndarray[Any, Any]) -> Integers:
    """Return for each image (N) its rarest label, as a number from 0; K for an image without any.

    Images with the same number are alike enough to be divided as images of one class are.
    """
    import numpy as np

    counts_K = sets_NK.sum(0, dtype=np.int64)
    by_count_K = np.argsort(counts_K, kind="stable")
    first_N: np.ndarray[Any, np.dtype[np.int64]] = by_count_K[sets_NK[:, by_count_K].argmax(1)]
    first_N[~sets_NK.any(1)] = sets_NK.shape[1]
    return first_N


def by_label(sets_NK: np.ndarray[Any, Any]) -> Integers:
    """Return all images (N), first one with each label that some image has, rare labels first.

    Each following round has another image of each stratum. So the first few images are as varied as
    the first of each class are in data of one label.
    """
    import numpy as np

    first: list[int] = []
    for label in np.argsort(sets_NK.sum(0, dtype=np.int64), kind="stable"):
        have_it = np.flatnonzero(sets_NK[:, label])
        if len(have_it) and not sets_NK[first, label].any():
            first.append(int(have_it[0]))
    stratum_N = strata(sets_NK)
    rank_N = np.zeros(len(sets_NK), np.int64)
    for stratum in np.unique(stratum_N):
        own = np.flatnonzero(stratum_N == stratum)
        rank_N[own] = np.arange(len(own))
    rank_N[first] = -1
    order_N: np.ndarray[Any, np.dtype[np.int64]] = np.argsort(rank_N, kind="stable")
    return order_N


class LabelWords(NamedTuple):
    """One of them, and several."""

    one: str
    several: str


def by_task(task: Task) -> LabelWords:
    """Return `class` where an image has one, and `label` where it has a set."""
    return LabelWords("label", "labels") if task == MULTI_LABEL else LabelWords("class", "classes")


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
        import numpy as np

        images = np.bincount(self.labels, minlength=len(self.names)).tolist()
        return dict(zip(self.names, images, strict=True))

    def images_of(self, name: str) -> Integers:
        """Return the numbers of the images with a label."""
        import numpy as np

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
    import numpy as np
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
    import numpy as np

    return np.array([set(names).issuperset(labels_in(text, task)) for text in texts], np.bool_)
