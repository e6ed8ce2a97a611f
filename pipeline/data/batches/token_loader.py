"""Batches of stored tokens, in place of images: the last blocks of a network are trained from them.

Shapes: B images of a batch, M images with tokens, V views of each, N tokens, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from patchline.pipeline.data.batches.batch_order import row_of
from patchline.pipeline.data.batches.loader import Batch, Targets
from patchline.pipeline.data.batches.one_ahead import endless, one_ahead

Array = np.ndarray[Any, Any]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TokenImages:
    """The tokens of images as a model takes them for a prediction, by the rows of the store.

    Attributes:
        tokens_MVND: float16, mapped from disk; the first view is the image itself, the second its
            mirror image if `mirrored`.
        rows: rows of the store whose tokens these are, increasing.
        stored: number of rows of the store.
        mirrored: whether a prediction takes an image together with its mirror image.
    """

    tokens_MVND: Array
    rows: Rows
    stored: int
    mirrored: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As of images: the rows of the store, and what each holds."""
        own = self.tokens_MVND.shape[2:]
        return (self.stored, 2, *own) if self.mirrored else (self.stored, *own)

    def __len__(self) -> int:
        return self.stored

    def __getitem__(self, rows: Any) -> Array:
        positions = self.positions(rows)
        return self.tokens_MVND[positions, :2] if self.mirrored else self.tokens_MVND[positions, 0]

    def positions(self, rows: Any) -> Rows:
        """Return where the tokens of some rows are.

        Raises:
            IndexError: if a row has no tokens, such as that of a test image.
        """
        numbers_N = np.asarray(rows)
        positions = np.minimum(np.searchsorted(self.rows, numbers_N), len(self.rows) - 1)
        if not np.array_equal(self.rows[positions], numbers_N):
            raise IndexError("no tokens are stored for some of these rows")
        return positions


@dataclass(frozen=True)
class TrainingTokens:
    """The images to train on, as the tokens of their views.

    In each epoch an image is shown in another view, until all have been shown. Which is the first
    depends on (seed, image) alone.
    """

    images: TokenImages
    targets: Targets
    """Of every row of the store."""
    seed: int

    def batches(
        self,
        order: Iterable[list[tuple[int, int]]],
        device: torch.device,
        needed: Callable[[], float] = endless,
        *,
        ahead: bool | None = None,
    ) -> Iterator[Batch]:
        """Yield batches of float16 tokens (B, N, D) and targets endlessly.

        Args:
            order: which images are in which batch, as (epoch, draw); see `batch_order`.
            device: where the batches are needed.
            needed: returns how many batches are needed, as far as it is known.
            ahead: whether a thread loads the next batch; by default for a GPU.
        """
        loaded = self._loaded(order, pinned=device.type == "cuda")
        if device.type == "cuda" if ahead is None else ahead:
            loaded = one_ahead(loaded, device, needed)
        for batch_BND, targets in loaded:
            moved_BND = batch_BND.to(device, non_blocking=True)
            yield moved_BND, targets.to(device, non_blocking=True)

    def _loaded(self, order: Iterable[list[tuple[int, int]]], *, pinned: bool) -> Iterator[Batch]:
        tokens_MVND, stored = self.images.tokens_MVND, self.images.stored
        views = tokens_MVND.shape[1]
        first = np.random.default_rng(self.seed).integers(0, views, stored)
        for keys in order:
            epochs, draws = np.array(keys).T
            rows = row_of(draws, stored)
            shown = (first[rows] + epochs + draws // stored) % views
            batch_BND = torch.from_numpy(tokens_MVND[self.images.positions(rows), shown])
            targets = torch.from_numpy(self.targets[rows])
            yield (batch_BND.pin_memory(), targets.pin_memory()) if pinned else (batch_BND, targets)
