"""Shuffling in windows, for a store that is larger than the memory or the disk of a machine.

Where all images are shuffled together, every epoch reads the whole store in random order. In
windows, an epoch is a sequence of parts of the store, each of which is read once, ahead of its use:
blocks of consecutive rows are assigned to windows by chance, then the rows of a window are
shuffled. A store lists its images class by class, as a folder does, so a window of random blocks
would have too many images of some classes. Each window therefore takes one of every few consecutive
blocks, so that it is a sample of the whole store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.int64]]

BLOCK_BYTES = 1 << 22
"""Bytes of images in a block, at most: 4 MiB, which disks and object stores read at full speed."""
_FEWEST_BLOCKS = 256
"""Blocks in a window, at least, so that it has about as many images of each class as any other."""


@dataclass(frozen=True)
class ShuffleWindows:
    """How the rows of a store are divided into windows."""

    count: int
    """Windows in an epoch."""
    stored: int
    """Rows of the store."""
    block_rows: int
    """Consecutive rows that are always in one window."""

    @classmethod
    def of(cls, fraction: float, stored: int, image_bytes: int) -> ShuffleWindows | None:
        """Return the windows of a store; None if one holds all images.

        Args:
            fraction: of the images that are shuffled together, at most.
            stored: rows of the store.
            image_bytes: of each row.
        """
        count = int(np.ceil(1 / fraction - 1e-9))
        if count == 1:
            return None
        block_rows = min(BLOCK_BYTES // image_bytes, stored // (count * _FEWEST_BLOCKS))
        return cls(count, stored, max(1, block_rows))

    def sorted(self, shuffled: Rows, generator: np.random.Generator) -> tuple[Rows, Rows]:
        """Return the draws of an epoch by window, and where each window ends.

        Args:
            shuffled: the draws in random order, which they keep within a window.
            generator: assigns the blocks to windows.
        """
        blocks = -(-self.stored // self.block_rows)
        rounds = np.tile(np.arange(self.count), (-(-blocks // self.count), 1))
        window_of_block = generator.permuted(rounds, axis=1).ravel()
        windows = window_of_block[shuffled % self.stored // self.block_rows]
        sizes = np.bincount(windows, minlength=self.count)
        by_window = shuffled[np.argsort(windows, kind="stable")]
        return by_window, np.cumsum(sizes[sizes > 0])
