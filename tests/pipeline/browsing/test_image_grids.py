"""Image grids cut out of figures."""

from __future__ import annotations

import numpy as np

from patchline.pipeline.browsing.image_grids import preview_steps
from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.training.augmentation_preview import preview_grid
from patchline.plugin_api import ImageSpec


def test_each_step_of_the_augmentation_is_an_epoch_of_the_same_images() -> None:
    """Step 0 holds the originals in order, four per row; each later step holds one epoch."""
    spec = ImageSpec(channels=1, height=64, width=64, mean=(0.5,), std=(0.5,), resize="crop")
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((6, 64, 64, 1), np.uint8)
    augmentation = SeededAugmentation(PluginChoice(name="none"), spec, seed=0)
    steps = preview_steps(preview_grid(augmentation, images, np.arange(6)))
    assert len(steps) == 6
    for step in steps:
        tiles = [step[top : top + 64, left : left + 64] for top, left in _places(6)]
        assert [int(tile.min()) for tile in tiles] == list(range(6))
        assert [int(tile.max()) for tile in tiles] == list(range(6))
    assert steps[0].shape == (2 * 68, 4 * 68, 3)
    assert steps[0][68:, 2 * 68 :].min() == 255


def _places(images: int) -> list[tuple[int, int]]:
    return [(68 * (number // 4), 68 * (number % 4)) for number in range(images)]
