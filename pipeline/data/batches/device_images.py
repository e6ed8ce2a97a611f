"""How batches come to a GPU: it keeps the images, or they are copied while it computes.

A GPU with room for all images of a training run keeps each one from its first use on; later batches
are read there. Otherwise each batch is copied from pinned memory by a stream of its own.

Shapes: B images of a batch, M images that are kept, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

Rows = np.ndarray[Any, np.dtype[np.int64]]

_SHARE_OF_FREE = 0.4
"""Most of a GPU's free memory that images take; the optimizer and activations need the rest."""


def fits_device(images: int, image_bytes: int, free_bytes: int) -> bool:
    """Return whether a GPU keeps all images of a training run: in 40% of its memory at most.

    Args:
        images: the number of different images.
        image_bytes: the size of one decoded image.
        free_bytes: the memory of the GPU that nothing uses.
    """
    return images * image_bytes <= _SHARE_OF_FREE * free_bytes


def read_free_bytes(device: torch.device) -> int:
    """Return the free memory of a CUDA device in bytes."""
    free, _ = torch.cuda.mem_get_info(device)
    return free


class KeptRows:
    """Which rows of a store a device keeps, and where: each from its first use on.

    Args:
        stored: number of rows of the store.
    """

    def __init__(self, stored: int) -> None:
        self._places = np.full(stored, -1)
        self._count = 0

    def add(self, rows_B: Rows) -> Rows:
        """Give places to those of the rows that have none, and return them, ascending."""
        new = np.unique(rows_B[self._places[rows_B] < 0])
        self._places[new] = np.arange(self._count, self._count + len(new))
        self._count += len(new)
        return new

    def places(self, rows_B: Rows) -> Rows:
        """Return where the device keeps the rows."""
        return self._places[rows_B]


class KeptImages:
    """The images that a device keeps, in the order in which they arrive.

    Args:
        images: number of images that will arrive, M.
        shape: height, width and channels of an image.
        device: the device.
    """

    def __init__(self, images: int, shape: tuple[int, ...], device: torch.device) -> None:
        self._images_MHWC = torch.empty((images, *shape), dtype=torch.uint8, device=device)
        self._count = 0

    def take(self, new_images: torch.Tensor, places_B: torch.Tensor) -> torch.Tensor:
        """Keep new images, and return those of a batch (B, H, W, C).

        Args:
            new_images: the images that come first in this batch, as `KeptRows.add` has listed them.
            places_B: the places of the batch's images, on the device.
        """
        end = self._count + len(new_images)
        self._images_MHWC[self._count : end] = new_images
        self._count = end
        return self._images_MHWC.index_select(0, places_B)


class LoadedBatch(NamedTuple):
    """What is loaded of a batch; the batched part of the augmentation follows."""

    images: torch.Tensor
    """The images (B, H, W, C), uint8; or, if the device keeps images, those that are new there."""
    targets: torch.Tensor
    epoch: int
    draws_B: torch.Tensor
    places_B: torch.Tensor | None = None
    """Where the device keeps the images."""
    drawn: torch.Tensor | None = None
    """What changes the images on the device; it stays on the CPU."""

    def to(self, device: torch.device) -> LoadedBatch:
        """Return the batch on a device, to which pinned memory is copied in the background."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=True)

        places_B = None if self.places_B is None else moved(self.places_B)
        return self._replace(
            images=moved(self.images),
            targets=moved(self.targets),
            draws_B=moved(self.draws_B),
            places_B=places_B,
        )


class CopiedBatch(NamedTuple):
    """A batch on a device."""

    batch: LoadedBatch
    copied: torch.cuda.Event | None
    """After it the batch is there; None if it is there already."""

    def wait(self) -> LoadedBatch:
        """Return the batch; what is computed with it from here on waits for the copies."""
        if self.copied is not None:
            current = torch.cuda.current_stream(self.batch.images.device)
            current.wait_event(self.copied)
            for value in self.batch:
                if isinstance(value, torch.Tensor) and value.is_cuda:
                    value.record_stream(current)
        return self.batch


def copy_batches(batches: Iterator[LoadedBatch], device: torch.device) -> Iterator[CopiedBatch]:
    """Yield batches on a device; a GPU copies them while it computes with those before them."""
    stream = None
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    for batch in batches:
        with torch.cuda.stream(stream) if stream else nullcontext():
            moved = batch.to(device)
            copied = stream.record_event() if stream else None
        yield CopiedBatch(moved, copied)
