"""Loss and accuracy over the steps of an epoch."""

from __future__ import annotations


class RunningSums:
    """Loss and accuracy of the current epoch, on the augmented images."""

    def __init__(
        self, loss: float = 0.0, correct: int = 0, images: int = 0, total_images: int = 0
    ) -> None:
        self.loss, self.correct, self.images, self.total_images = (
            loss,
            correct,
            images,
            total_images,
        )

    def add(self, loss: float, correct: int, images: int) -> None:
        """Add the images of one step, with their mean loss."""
        self.loss += loss * images
        self.correct += correct
        self.images += images
        self.total_images += images

    def next_epoch(self) -> None:
        """Reset the sums of the epoch; the image count of the whole training stays."""
        self.loss, self.correct, self.images = 0.0, 0, 0

    @property
    def mean_loss(self) -> float:
        """Mean loss per image in this epoch."""
        return self.loss / max(1, self.images)

    @property
    def accuracy(self) -> float:
        """Fraction of this epoch's images that were classified correctly."""
        return self.correct / max(1, self.images)
