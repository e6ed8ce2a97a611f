"""Loss, accuracy and duration over the steps of an epoch.

Shapes: S steps that are pending.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_MOST_PENDING = 1000


class RunningSums:
    """Loss, accuracy and duration of the current epoch, on the augmented images.

    The values of each step stay on their device until somebody reads a sum, so that adding them
    does not wait for the device. With several ranks, they stay on their rank until then: what is
    pending is read by all of them together.

    Args:
        total: returns the sum of a tensor over the ranks.
    """

    def __init__(
        self, total: Callable[[torch.Tensor], torch.Tensor] = lambda values: values
    ) -> None:
        self._total = total
        self.restore({})

    def restore(self, numbers: dict[str, float]) -> None:
        """Take the sums that `numbers` has returned; without any, start at zero."""
        self.seconds = numbers.get("seconds", 0.0)
        """Spent in the steps of the epoch; whoever does the steps adds it."""
        self._loss, self._correct = numbers.get("loss", 0.0), int(numbers.get("correct", 0))
        self.images = int(numbers.get("images", 0))
        self.total_images = int(numbers.get("total_images", 0))
        self._pending: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def add(self, loss: torch.Tensor, correct: torch.Tensor, images: int) -> None:
        """Add the images of one step, with this rank's part of their mean loss."""
        self._pending.append((loss, correct, images))
        self.images += images
        self.total_images += images
        if len(self._pending) >= _MOST_PENDING:
            self.read()

    def next_epoch(self) -> None:
        """Reset the sums of the epoch; the image count of the whole training stays."""
        self._loss, self._correct, self.images, self.seconds = 0.0, 0, 0, 0.0
        self._pending.clear()

    def numbers(self) -> dict[str, float]:
        """Return the sums, for `restore`."""
        self.read()
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
        self.read()
        return self._loss / max(1, self.images)

    @property
    def accuracy(self) -> float:
        """Fraction of this epoch's images that were classified correctly."""
        self.read()
        return self._correct / max(1, self.images)

    def read(self) -> None:
        """Read what is pending from the device and the other ranks, all at once."""
        if not self._pending:
            return
        losses, corrects, images = zip(*self._pending, strict=True)
        self._pending.clear()
        both = self._total(
            torch.stack([torch.stack(losses).float(), torch.stack(corrects).float()])
        )
        losses_S, corrects_S = both.tolist()
        for loss, count in zip(losses_S, images, strict=True):
            self._loss += loss * count
        self._correct += int(sum(corrects_S))
