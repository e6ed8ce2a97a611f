"""Images are computed together only as far as that is faster for each of them."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.serving.checked_package import paying_batch


class Timed:
    """A package whose batches take a time of their own on a clock that only they move."""

    image = {"height": 4, "width": 4, "channels": 3}  # noqa: RUF012 - read only

    def __init__(self, call: float, image: float) -> None:
        self.now = 0.0
        self.largest = 0
        self._call, self._image = call, image

    def answers_to(self, images: list[Any], top_k: int) -> None:
        """Let the time pass that a batch takes."""
        assert top_k == 1
        self.largest = max(self.largest, len(images))
        self.now += self._call + self._image * len(images)

    def batch(self) -> int:
        """Return the size that is chosen."""
        return paying_batch(cast("PackagedModel", self), lambda: self.now)


@pytest.mark.parametrize(
    ("call", "image", "batch"),
    [(0.0, 10.0, 2), (0.4, 9.6, 2), (1.0, 1.0, 32), (5.0, 0.01, 64)],
    ids=["in proportion", "a network of 10 ms", "a call costs an image", "calls cost everything"],
)
def test_a_batch_grows_while_it_pays(call: float, image: float, batch: int) -> None:
    """Twice the size must save a twentieth for each image."""
    assert Timed(call, image).batch() == batch


def test_a_slow_network_is_measured_little() -> None:
    """Of one in proportion, no more than two images are computed together to find out."""
    package = Timed(0.0, 1.0)
    began = time.monotonic()
    package.batch()
    assert package.largest == 2
    assert time.monotonic() - began < 1
