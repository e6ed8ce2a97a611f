"""What a GPU keeps of the images, decided by numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from patchline.pipeline.data.batches.device_images import KeptImages, KeptRows, fits_device

GIB = 2**30


@pytest.mark.parametrize(
    ("images", "side", "free_gib", "keeps"),
    [
        (50_000, 32, 1, True),  # CIFAR-10: 0.14 GiB
        (100_000, 224, 24, False),  # 14 GiB
        (100_000, 224, 80, True),
        (1_281_167, 224, 140, False),  # ImageNet-1k: 180 GiB
        (0, 224, 0, True),
    ],
)
def test_images_are_kept_in_two_fifths_of_the_free_memory(
    images: int, side: int, free_gib: int, *, keeps: bool
) -> None:
    """And not where they need more."""
    image_bytes = side * side * 3
    assert fits_device(images, image_bytes, free_gib * GIB) == keeps
    assert fits_device(images, image_bytes, -(-images * image_bytes * 5 // 2))


def test_each_row_is_loaded_once_and_read_where_it_is() -> None:
    """Rows that come again, in one batch or later, have the place of their first use."""
    stored = torch.arange(20 * 6, dtype=torch.uint8).view(20, 1, 2, 3)
    rows, images = KeptRows(20), KeptImages(20, (1, 2, 3), torch.device("cpu"))
    generator, loaded = np.random.default_rng(0), list[int]()
    for _ in range(12):
        batch = generator.integers(0, 20, 5)
        new = rows.add(batch)
        loaded += new.tolist()
        places = torch.from_numpy(rows.places(batch))
        assert torch.equal(images.take(stored[new], places), stored[batch])
    assert len(loaded) == len(set(loaded)) > 15
