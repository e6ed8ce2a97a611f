"""A compact set of images: 48 bits for each file, each decoded image and each group.

Two images are the same as in `patchline.pipeline.data.manifests.same_images`: their files have one
SHA-256, or their decoded pixels one digest. A near duplicate is another image, unless it is in the
same group.

A digest that two images share by accident only ever marks an unseen image as seen: with a million
images recorded, this happens to one image in 10⁸ that are looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Digests = np.ndarray[Any, np.dtype[np.uint64]]
Booleans = np.ndarray[Any, np.dtype[np.bool_]]

DIGEST_BYTES = 6
CONTENT = ("sha256", "pixels")
"""Columns of a manifest that identify an image."""
WITH_GROUPS = (*CONTENT, "group")
"""Images of one patient, plant or camera resemble each other, so groups count too."""


def _none() -> Digests:
    return np.zeros(0, np.uint64)


@dataclass(frozen=True, eq=False)
class SeenImages:
    """Images that weights were trained on, and those that they were selected by.

    Attributes:
        trained_N: sorted digests of the images trained on.
        selected_N: sorted digests of the images used for model selection alone.
    """

    trained_N: Digests = field(default_factory=_none)
    selected_N: Digests = field(default_factory=_none)

    @classmethod
    def of(cls, trained: pd.DataFrame, selected: pd.DataFrame) -> SeenImages:
        """Return the images in rows of manifests."""
        return cls(_of_table(trained), _of_table(selected))

    def __bool__(self) -> bool:
        return bool(len(self.trained_N) or len(self.selected_N))

    def __len__(self) -> int:
        return len(self.trained_N) + len(self.selected_N)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenImages) and all(
            np.array_equal(mine, others)
            for mine, others in (
                (self.trained_N, other.trained_N),
                (self.selected_N, other.selected_N),
            )
        )

    def __hash__(self) -> int:
        return hash((self.trained_N.tobytes(), self.selected_N.tobytes()))

    def contain(
        self,
        images: pd.DataFrame,
        columns: Sequence[str] = WITH_GROUPS,
        *,
        trained_only: bool = False,
    ) -> Booleans:
        """Return which images (N,) were seen.

        Args:
            images: rows of a manifest.
            columns: what an image is recognised by.
            trained_only: leave out images that were used for model selection alone.
        """
        is_contained = np.zeros(len(images), np.bool_)
        sets = (self.trained_N,) if trained_only else (self.trained_N, self.selected_N)
        for column in columns:
            places, digests = _of_column(images, column)
            for digests_N in sets:
                is_contained[places] |= np.isin(digests, digests_N)
        return is_contained


def united(sets: Iterable[SeenImages]) -> SeenImages:
    """Return the images that any of the sets holds."""
    every = list(sets)
    trained = [each.trained_N for each in every]
    selected = [each.selected_N for each in every]
    return SeenImages(
        np.unique(np.concatenate([_none(), *trained])),
        np.unique(np.concatenate([_none(), *selected])),
    )


def _of_table(images: pd.DataFrame) -> Digests:
    parts = [_of_column(images, column)[1] for column in WITH_GROUPS]
    return np.unique(np.concatenate([_none(), *parts]))


def _of_column(
    images: pd.DataFrame, column: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Digests]:
    """Return the rows that have a value in a column, and the digests of these values."""
    if column not in images:
        return np.zeros(0, np.int64), _none()
    values = images[column].astype(object).fillna("").astype(str).to_numpy(object)
    places = np.flatnonzero(values != "")
    known: dict[str, int] = {}
    for value in values[places]:
        if value not in known:
            text = f"{column}\0{value}".encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
            known[value] = int.from_bytes(digest, "little")
    return places, np.array([known[value] for value in values[places]], np.uint64)
