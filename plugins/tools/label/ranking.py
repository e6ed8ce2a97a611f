"""Which images help most: typical ones while few are labelled, then those that are hard to predict.

At first, the images are divided into as many clusters as there will be labels, and the most typical
image is asked about of each large cluster that has no label: TypiClust (Hacohen, Dekel and
Weinshall, "Active Learning on a Budget", arXiv 2202.02794, section 3). With enough labels for each
class, a linear head on the same features predicts the others, and those are asked about whose two
most probable classes are the closest.

Shapes: N images, D features, K classes; rows are numbers of images.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.answer_columns import FINDING, RANDOM
from patchline.pipeline.data.labels.answers.answer import REPRESENTATIVE, UNCERTAIN, Suggestion
from patchline.plugins.tools.label.pool import draw_at_random

Source = Literal["representative", "uncertain"]
REST = "rest"
"""The image was next in a random order of those that are left, because no other was ranked."""
EVERY = 3
"""One of so many images is drawn at random."""
IsOpen = Callable[[str], bool]


class Chosen(NamedTuple):
    """An image to ask about."""

    key: str
    source: str


class ImageOrder:
    """The order of the images of a pool.

    Args:
        keys: keys of the images.
        seed: the seed of the random draws.
        listed: the only images to ask about, in this order; None for all, as they are ranked.

    Attributes:
        listed: the only images to ask about, as the keys of a dictionary; None for all.
    """

    def __init__(self, keys: Sequence[str], seed: int, listed: Sequence[str] | None = None) -> None:
        self.seed = seed
        self.listed = None if listed is None else dict.fromkeys(listed)
        self._near: Mapping[str, Sequence[str]] = {}
        self._lock = threading.Lock()  # images arrive while their near duplicates are found
        self.use(keys)
        self._ranked: list[str] = []
        self._source: Source | None = None
        self._turn = 0

    def use(self, keys: Sequence[str]) -> None:
        """Use these images; each of those that were there before keeps its place."""
        with self._lock:
            self._keys = list(keys)
            self._draw()

    def _draw(self) -> None:
        self._sample, self._others = draw_at_random(self._keys, self.seed, self._near)

    def group(self, near: Mapping[str, Sequence[str]]) -> None:
        """Draw near duplicates together, so that no choice takes one of them from the sample.

        Args:
            near: the near duplicates of images that have some.
        """
        with self._lock:
            self._near = near
            self._draw()
        sample = self.sample
        self._ranked = [key for key in self._ranked if key not in sample]

    @property
    def source(self) -> Source | None:
        """How images are ranked at the moment; None for a random order."""
        return self._source

    @property
    def sample(self) -> frozenset[str]:
        """The images that only random draws ask about."""
        return frozenset(self._sample)

    def rank(self, keys: Sequence[str], source: Source) -> None:
        """Ask about these images next, the first one first."""
        self._ranked, self._source = list(keys), source

    def ranked(self, is_open: IsOpen) -> int:
        """Return how many ranked images are left."""
        return sum(map(is_open, self._ranked))

    def next(self, is_open: IsOpen) -> Chosen | None:
        """Return the next image; None if there is none.

        Args:
            is_open: whether an image may be asked about.
        """
        if self.listed is not None:
            key = _first(self.listed, is_open)
            return Chosen(key, FINDING) if key else None
        turn = self._turn
        self._turn += 1
        if turn % EVERY == EVERY - 1 and (key := _first(self._sample, is_open)):
            return Chosen(key, RANDOM)
        if key := _first(self._ranked, is_open):
            return Chosen(key, self._source or REPRESENTATIVE)
        for keys in (self._others, self._sample):
            if key := _first(keys, is_open):
                return Chosen(key, RANDOM if self._source is None or keys is self._sample else REST)
        return None


def _first(keys: Iterable[str], is_open: IsOpen) -> str:
    return next(filter(is_open, keys), "")


Array = np.ndarray[Any, Any]
LABELS_EACH = 10
"""Labels of a class, on average, from which uncertain images help more than typical ones."""
_MOST_CLUSTERS, _EXACT_CLUSTERS, _SMALLEST_CLUSTER = 500, 50, 5
_NEIGHBOURS = 20
_MOST_IMAGES = 20_000
"""Images that are clustered; of more, a random sample."""
_PENALTY = 10.0
"""scikit-learn's C for features of length 1."""


class Ranking(NamedTuple):
    """The next images."""

    rows: list[int]
    source: Source


def ranking(
    features_ND: Array,
    candidates: Sequence[int],
    labelled: Sequence[int],
    labels: Sequence[tuple[str, ...]],
    count: int,
    seed: int = 0,
) -> Ranking:
    """Return the images that help most, the first one first.

    Args:
        features_ND: features of all images (N, D), each row of length 1.
        candidates: rows that may be asked about.
        labelled: rows with labels.
        labels: the labels of each row in `labelled`.
        count: the number of images to return.
        seed: the seed of the clusters.
    """
    names = {name for each in labels for name in each}
    if len(names) > 1 and len(labelled) >= LABELS_EACH * len(names):
        probabilities = predict_by_head(features_ND, labelled, labels)
        if probabilities is not None:
            rows = uncertain(probabilities[1], candidates, count)
            return Ranking(rows, UNCERTAIN)
    return Ranking(typical(features_ND, candidates, labelled, count, seed), REPRESENTATIVE)


def typical(
    features_ND: Array, candidates: Sequence[int], labelled: Sequence[int], count: int, seed: int
) -> list[int]:
    """Return the most typical image of each of the largest clusters without a label.

    Args:
        features_ND: features of all images (N, D).
        candidates: rows that may be asked about.
        labelled: rows with labels.
        count: the number of images to return.
        seed: the seed of the clusters, and of the images that are drawn if there are many.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans

    random = np.random.default_rng(seed)
    may_ask = np.array(sorted(candidates), dtype=np.int64)
    if len(may_ask) > _MOST_IMAGES:
        may_ask = np.sort(random.choice(may_ask, _MOST_IMAGES, replace=False))
    rows = np.union1d(may_ask, np.array(list(labelled), dtype=np.int64))
    if not len(may_ask):
        return []
    clusters = min(len(labelled) + count, _MOST_CLUSTERS, len(rows))
    kind = KMeans if clusters <= _EXACT_CLUSTERS else MiniBatchKMeans
    options = {"batch_size": 4096} if kind is MiniBatchKMeans else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct images than clusters
        cluster_R = kind(clusters, n_init=1, random_state=seed, **options).fit_predict(
            features_ND[rows]
        )
    has_label_R, open_R = np.isin(rows, labelled), np.isin(rows, may_ask)
    sizes_C = np.bincount(cluster_R, minlength=clusters)
    labels_C = np.bincount(cluster_R[has_label_R], minlength=clusters)
    order = sorted(range(clusters), key=lambda each: (labels_C[each], -sizes_C[each]))
    large = [each for each in order if sizes_C[each] >= _SMALLEST_CLUSTER] or order
    chosen: list[int] = []
    taken_R = np.zeros(len(rows), np.bool_)
    for turn in range(count * max(1, len(large))):
        if len(chosen) >= min(count, len(may_ask)):
            break
        members = np.flatnonzero((cluster_R == large[turn % len(large)]) & ~taken_R)
        usable = open_R[members]
        if not usable.any():
            continue
        typicality_M = _typicality(features_ND[rows[members]])
        typicality_M[~usable] = -np.inf
        best = members[int(typicality_M.argmax())]
        taken_R[best] = True
        chosen.append(int(rows[best]))
    return chosen


def _typicality(features_MD: Array) -> Array:
    """Return how dense the images of a cluster are around each of them (M), section 3.2."""
    most = 2000
    neighbours = min(_NEIGHBOURS, max(1, len(features_MD) // 2))
    if len(features_MD) == 1:
        return np.ones(1)
    others_OD = features_MD[:: -(-len(features_MD) // most)]
    squared_MO = (
        (features_MD**2).sum(1)[:, None] + (others_OD**2).sum(1) - 2 * features_MD @ others_OD.T
    )
    distances_MO = np.sqrt(np.maximum(squared_MO, 0.0))
    nearest_MN = np.partition(distances_MO, min(neighbours, distances_MO.shape[1] - 1), axis=1)
    mean_M: Array = nearest_MN[:, : neighbours + 1].sum(1) / neighbours  # itself has no distance
    return 1.0 / (mean_M + 1e-5)


def uncertain(probabilities_NK: Array, candidates: Sequence[int], count: int) -> list[int]:
    """Return the images whose two most probable classes are the closest."""
    rows = np.array(sorted(candidates), dtype=np.int64)
    if not len(rows):
        return []
    highest_R2 = np.sort(probabilities_NK[rows], axis=1)[:, -2:]
    margin_R = highest_R2[:, 1] - highest_R2[:, 0]
    return [int(row) for row in rows[np.argsort(margin_R, kind="stable")[:count]]]


def fit_head(features_ND: Array, labels_N: Array) -> Any:
    """Return scikit-learn's logistic regression for features of length 1."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=_PENALTY, max_iter=300).fit(features_ND, labels_N)


def predict_by_head(
    features_ND: Array, labelled: Sequence[int], labels: Sequence[tuple[str, ...]]
) -> tuple[list[str], Array] | None:
    """Return classes (K), and their probabilities for all images (N, K), by a linear head.

    Images with several labels, or none, are left out.

    Returns:
        None with fewer than two classes.
    """
    rows = [row for row, each in zip(labelled, labels, strict=True) if len(each) == 1]
    names = [each[0] for each in labels if len(each) == 1]
    if len(set(names)) < 2:  # noqa: PLR2004 - nothing to tell apart
        return None
    head = fit_head(features_ND[rows], np.array(names, dtype=object))
    return [str(each) for each in head.classes_], head.predict_proba(features_ND)


def suggestions(classes: Sequence[str], probabilities_NK: Array) -> list[Suggestion]:
    """Return the most probable class of each image."""
    best_N = probabilities_NK.argmax(1)
    values_N = probabilities_NK[np.arange(len(best_N)), best_N]
    pairs = zip(best_N, values_N, strict=True)
    return [Suggestion((classes[int(best)],), float(value)) for best, value in pairs]
