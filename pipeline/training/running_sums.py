"""Loss, accuracy and duration over the steps of an epoch."""

from __future__ import annotations

import torch

_MOST_PENDING = 1000


class RunningSums:
    """Loss, accuracy and duration of the current epoch, on the augmented images.

    The values of each step stay on their device until somebody reads a sum, so that adding them
    does not wait for the device.
    """

    def __init__(
        self,
        loss: float = 0.0,
        correct: int = 0,
        images: int = 0,
        total_images: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self.seconds = seconds
        """Spent in the steps of the epoch; whoever does the steps adds it."""
        self._loss, self._correct = loss, correct
        self.images, self.total_images = images, total_images
        self._pending: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def add(self, loss: torch.Tensor, correct: torch.Tensor, images: int) -> None:
        """Add the images of one step, with their mean loss."""
        self._pending.append((loss, correct, images))
        self.images += images
        self.total_images += images
        if len(self._pending) >= _MOST_PENDING:
            self._read()

    def next_epoch(self) -> None:
        """Reset the sums of the epoch; the image count of the whole training stays."""
        self._loss, self._correct, self.images, self.seconds = 0.0, 0, 0, 0.0
        self._pending.clear()

    def numbers(self) -> dict[str, float]:
        """Return the arguments that make an equal object."""
        self._read()
        return {
            "loss": self._loss,
            "correct": self._correct,
            "images": self.images,
            "total_images": self.total_images,
            "seconds": self.seconds,
        }

    @property
    def mean_loss(self) -> float:
        """Mean loss per image in this epoch."""
        self._read()
        return self._loss / max(1, self.images)

    @property
    def accuracy(self) -> float:
        """Fraction of this epoch's images that were classified correctly."""
        self._read()
        return self._correct / max(1, self.images)

    def _read(self) -> None:
        """Read what is pending from the device, all at once."""
        if not self._pending:
            return
        losses, corrects, images = zip(*self._pending, strict=True)
        self._pending.clear()
        for loss, count in zip(torch.stack(losses).tolist(), images, strict=True):
            self._loss += loss * count
        self._correct += int(torch.stack(corrects).sum())
