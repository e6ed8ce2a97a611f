"""Images are computed together only as far as that is faster for each of them."""

from __future__ import annotations

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
    ("call", "image", "batch", "largest"),
    [(0, 16, 2, 4), (0.4, 9.6, 4, 8), (1, 9, 16, 16), (5, 0.01, 64, 64), (1000, 1000, 2, 2)],
    ids=["in proportion", "calls cost 4%", "calls cost 10%", "calls cost all", "very slow"],
)
def test_a_batch_grows_while_it_pays(call: float, image: float, batch: int, largest: int) -> None:
    """The smallest batch within 2% of the fastest one is chosen, or twice that if no slower.

    Where nothing is gained, or an image takes a second, few images are computed to find out.
    """
    package = Timed(call / 1000, image / 1000)
    assert (package.batch(), package.largest) == (batch, largest)
