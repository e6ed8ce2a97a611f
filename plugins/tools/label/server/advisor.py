"""Order the images and suggest labels, in a thread beside the page.

The page opens at once with a random order; when the features of all images are there, the images
that help most come first. The ranking follows the answers.

Shapes: N images, K classes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from patchline.pipeline.data.labels.answer_columns import RANDOM
from patchline.pipeline.data.labels.answers.answer import REPRESENTATIVE, Suggestion
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.near_duplicates.matching import matches
from patchline.pipeline.data.near_duplicates.search import LEAST_SIDE
from patchline.pipeline.errors import first_line
from patchline.plugins.tools.label.pool import Pool, PoolImage
from patchline.plugins.tools.label.ranking import ImageOrder, predict_by_head, ranking, suggestions
from patchline.plugins.tools.label.server.image_features import Described, FeatureSource

logger = logging.getLogger(__name__)
_BATCH = 20
"""Images that are ranked at a time."""
_GOODBYE_SECONDS = 1.0
_FEW = 8
"""With fewer ranked images left, others are ranked."""


class Advisor:
    """What is known about the images beside themselves.

    Args:
        pool: the images.
        answers: the table.
        order: the order of the images; it is told which of them help most.
        source: the source of the features; None if there are no weights.
        without: why there are none.
    """

    def __init__(
        self,
        pool: Pool,
        answers: AnswersTable,
        order: ImageOrder,
        source: FeatureSource | None,
        without: str = "",
    ) -> None:
        self._pool, self._answers, self._order = pool, answers, order
        self._source = source
        self._words = f"random, because {without}" if source is None else "random at first"
        self._suggestions: dict[str, Suggestion] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._changed = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._advise, name="advisor", daemon=True)

    def start(self) -> None:
        """Begin to compute."""
        if self._source is not None:
            self._thread.start()

    def stop(self) -> bool:
        """Compute no more; return whether a network still computes a batch."""
        self._stopped = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(_GOODBYE_SECONDS)
        return self._thread.is_alive()

    def together(self, key: str) -> Sequence[str]:
        """Return the near duplicates of an image."""
        return self._groups.get(key, ())

    def suggestion(self, key: str) -> Suggestion | None:
        """Return what is predicted for an image."""
        return self._suggestions.get(key)

    def wake(self) -> None:
        """Compute what new images need, and rank the images again if few are left."""
        self._changed.set()

    def words(self) -> str:
        """Return how the images are ordered."""
        return self._words

    def suggests(self) -> str:
        """Return what makes suggestions; empty if nothing does."""
        return self._source.name if self._source and self._suggestions else ""

    def _advise(self) -> None:
        source = self._source
        assert source is not None  # noqa: S101 - the thread is started with one
        known: Described | None = None
        seen: set[str] = set()
        try:
            while not self._stopped:
                self._changed.clear()
                images = self._pool.images
                new = [image for key, image in images.items() if key not in seen]
                if new:
                    seen.update(image.key for image in new)
                    known = self._described(source, new, known)
                    if self._stopped:
                        return
                    self._groups = _near(known) if known else {}
                    self._tell_groups()
                if known and self._order.ranked(self._is_unanswered) < _FEW:
                    self._rank(known)
                self._changed.wait()
        except Exception as error:
            logger.exception("The images cannot be ranked.")
            self._words = f"random, because the images could not be ranked: {first_line(error)}"

    def _tell_groups(self) -> None:
        """Tell the order, and the table, which images are near duplicates of one another."""
        self._order.group(self._groups)
        images = self._pool.images
        groups = {tuple(sorted((key, *others))) for key, others in self._groups.items()}
        self._answers.group(
            [images[key].path for key in keys if key in images] for keys in sorted(groups)
        )

    def _described(
        self, source: FeatureSource, images: Sequence[PoolImage], before: Described | None
    ) -> Described | None:
        """Return what is known of all images that can be read, known ones and new ones."""
        parts = [before] if before else []
        done = 0
        for part in source.described(images):
            if self._stopped:
                return before
            parts.append(part)
            done += part.images
            if before is None:
                self._words = (
                    f"random, until {source.name} has seen all images "
                    f"({done:,} of {len(images):,} so far)"
                )
            for key, suggestion in part.suggestions.items():
                self._suggestions[key] = suggestion
        if not parts:
            self._words = "random, because no image can be read"
        return Described.joined(parts) if parts else None

    def _is_unanswered(self, key: str) -> bool:
        image = self._pool.images.get(key)
        return image is not None and self._answers.answer(image.path) is None

    def _rank(self, advice: Described) -> None:
        rows = {key: row for row, key in enumerate(advice.keys)}
        standing = self._answers.standing()
        sample = self._order.sample
        answered = [
            (rows[image.key], answer.labels, answer.source == RANDOM or image.key in sample)
            for path, answer in standing.items()
            if (image := self._pool.by_path.get(path)) is not None and image.key in rows
            if answer.verdict == "label"
        ]
        labelled, labels = [row for row, _, _ in answered], [each for _, each, _ in answered]
        # What is chosen must not depend on what was drawn: a run tests on that, and trains on this.
        own_rows = [row for row, _, is_drawn in answered if not is_drawn]
        own_labels = [each for _, each, is_drawn in answered if not is_drawn]
        open_rows = [
            row for key, row in rows.items() if key not in sample and self._is_unanswered(key)
        ]
        seed = self._order.seed + len(labelled)
        found = ranking(advice.features_ND, open_rows, own_rows, own_labels, _BATCH, seed)
        if not advice.classes and self._answers.task != MULTI_LABEL:
            own = predict_by_head(advice.features_ND, labelled, labels)
            if own is not None:
                named = suggestions(*own)
                self._suggestions = dict(zip(advice.keys, named, strict=True))
        self._order.rank([advice.keys[row] for row in found.rows], found.source)
        is_typical = found.source == REPRESENTATIVE
        how = "typical images first" if is_typical else "images first that are hard to predict"
        name = self._source.name if self._source else ""
        self._words = f"{how}, by the features of {name}; every third at random"


def _near(described: Described) -> dict[str, tuple[str, ...]]:
    """Return the near duplicates of each image that has some."""
    large = np.flatnonzero(described.sides_N >= LEAST_SIDE)
    taken = described.thumbnails.take(large)
    pairs = [pair for pair, _ in matches(taken)] if len(large) > 1 else []
    if not pairs:
        return {}
    a, b = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(a), np.bool_), (a, b)), shape=(len(large), len(large)))
    _, numbers = connected_components(graph, directed=False)
    groups: dict[int, list[str]] = {}
    for place, number in enumerate(numbers):
        groups.setdefault(int(number), []).append(described.keys[large[place]])
    return {
        key: tuple(other for other in group if other != key)
        for group in groups.values()
        if len(group) > 1
        for key in group
    }
