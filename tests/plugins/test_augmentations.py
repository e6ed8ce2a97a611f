"""The built-in augmentations keep an image's shape, type and class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.config import PluginChoice
from pipeline.data.augmentation import SeededAugmentation
from pipeline.plugin_api import DataTraits, ImageSpec
from plugins.augmentations.light import LightConfig
from tests.conftest import draw_photo

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
STILL: dict[str, Any] = {"shift": 0, "scale": 0, "rotation": 0, "brightness": 0}
"""Settings of `light` that leave nothing but mirroring."""


def _photo(channels: int) -> Pixels:
    return np.ascontiguousarray(draw_photo(label=3, variant=1, side=24)[:, :, :channels])


def _augmentation(name: str, channels: int = 3, **settings: Any) -> SeededAugmentation:
    image = ImageSpec.model_validate(
        {
            "channels": channels,
            "height": 24,
            "width": 24,
            "mean": (0.5,) * channels,
            "std": (0.25,) * channels,
            "resize": "crop",
        }
    )
    return SeededAugmentation(PluginChoice.model_validate({"name": name, **settings}), image, 0)


@pytest.mark.parametrize("channels", [1, 3])
def test_none_changes_nothing(channels: int) -> None:
    """Every image comes back as it was, in every epoch."""
    augment, photo = _augmentation("none", channels), _photo(channels)
    assert all(np.array_equal(augment(photo, epoch, 5), photo) for epoch in range(5))


@pytest.mark.parametrize("channels", [1, 3])
def test_light_keeps_shape_and_type(channels: int) -> None:
    """Images stay uint8 of the same shape, greyscale ones with their one channel."""
    augment, photo = _augmentation("light", channels, horizontal_flip=True), _photo(channels)
    for epoch in range(20):
        changed = augment(photo, epoch, 5)
        assert changed.shape == photo.shape
        assert changed.dtype == np.uint8


def test_light_shows_another_image_each_epoch() -> None:
    """No two epochs show the same pixels, and none shows an empty image."""
    augment, photo = _augmentation("light", horizontal_flip=False), _photo(3)
    seen = [augment(photo, epoch, 5) for epoch in range(10)]
    assert len({image.tobytes() for image in seen}) == 10
    assert min(float(image.std()) for image in seen) > 0.3 * float(photo.std())


def test_light_leaves_the_image_it_was_given() -> None:
    """The stored image itself is never written to."""
    augment, photo = _augmentation("light", horizontal_flip=True), _photo(3)
    before = photo.copy()
    for epoch in range(10):
        augment(photo, epoch, 5)
    assert np.array_equal(photo, before)


@pytest.mark.parametrize("symmetric", [True, False])
def test_light_mirrors_where_the_data_allows_it(symmetric: bool) -> None:
    """Half of the images are mirrored if that keeps the class, and none otherwise."""
    traits = DataTraits(channels=3, height=24, width=24, num_classes=2, mirror_symmetric=symmetric)
    resolved = LightConfig.model_validate(STILL).resolved_for(traits)
    augment, photo = _augmentation("light", **resolved.model_dump()), _photo(3)
    mirrored = 0
    for epoch in range(60):
        seen = augment(photo, epoch, 5)
        mirrored += np.array_equal(seen, photo[:, ::-1])
        assert np.array_equal(seen, photo) or np.array_equal(seen, photo[:, ::-1])
    assert 15 <= mirrored <= 45 if symmetric else mirrored == 0


def test_a_choice_beats_the_data() -> None:
    """A mirror setting that the user made stays, whatever the data says."""
    traits = DataTraits(channels=3, height=24, width=24, num_classes=2, mirror_symmetric=False)
    assert LightConfig(horizontal_flip=True).resolved_for(traits).horizontal_flip is True


def test_settings_reach_the_pixels() -> None:
    """With a shift alone, the image is displaced by at most that share of its side."""
    augment = _augmentation("light", horizontal_flip=False, **(STILL | {"shift": 0.25}))
    dot = np.zeros((24, 24, 3), np.uint8)
    dot[11:13, 11:13] = 255
    centres = np.array(
        [np.argwhere(augment(dot, epoch, 5)[:, :, 0] > 60).mean(axis=0) for epoch in range(40)]
    )
    farthest = np.abs(centres - 11.5).max(axis=0)
    assert (farthest <= 0.25 * 24 + 0.75).all()
    assert (farthest > 0.15 * 24).all()
