"""The built-in augmentations against references, and what their settings do.

That they keep shape and type, and change every image by itself, is part of their contract.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform
from torchvision.transforms.v2.functional import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    resized_crop,
)

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import CounterRandom, SeededAugmentation
from patchline.plugin_api import DataTraits, PluginConfig
from patchline.plugins.augmentations.affine_module import (
    as_bytes,
    as_floats,
    lights,
    lit,
    lit_in_turn,
    move,
    move_in_turn,
    placements,
)
from patchline.plugins.augmentations.batch_module import enlarge, erase, recolor, windows
from patchline.plugins.augmentations.light import LightConfig
from patchline.plugins.augmentations.resized_crop import ResizedCropConfig
from patchline.plugins.augmentations.standard import CropAndFlipConfig
from tests.conftest import draw_photo
from tests.plugins.model_parity import image_spec

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
STILL: dict[str, Any] = {"shift": 0, "scale": 0, "rotation": 0, "brightness": 0}
"""Settings of `light` that leave nothing but mirroring."""


def _photo(channels: int) -> Pixels:
    return np.ascontiguousarray(draw_photo(label=3, variant=1, side=24)[:, :, :channels])


def _augmentation(name: str, channels: int = 3, **settings: Any) -> SeededAugmentation:
    choice = PluginChoice.model_validate({"name": name, **settings})
    return SeededAugmentation(choice, image_spec(24, channels=channels), 0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("name", "config_class", "still"),
    [
        ("light", LightConfig, STILL),
        ("standard", CropAndFlipConfig, {"pad": 0}),
        (
            "resized_crop",
            ResizedCropConfig,
            {"smallest_area": 1, "largest_ratio": 1, "brightness": 0, "contrast": 0,
             "saturation": 0},
        ),
    ],
    ids=["light", "standard", "resized_crop"],
)  # fmt: skip
def test_images_are_mirrored_where_the_data_allows_it(
    name: str, config_class: type[PluginConfig], still: dict[str, Any], *, symmetric: bool
) -> None:
    """Half of the images are mirrored if that keeps the class, and none otherwise."""
    traits = DataTraits(channels=3, height=24, width=24, num_classes=2, mirror_symmetric=symmetric)
    resolved = config_class.model_validate(still).resolved_for(traits)
    augment, photo = _augmentation(name, **resolved.model_dump()), _photo(3)
    seen = [augment(photo, row % 3, row) for row in range(60)]
    mirrored = sum(np.array_equal(image, photo[:, ::-1]) for image in seen)
    assert mirrored + sum(np.array_equal(image, photo) for image in seen) == 60
    assert 15 <= mirrored <= 45 if symmetric else mirrored == 0


@pytest.mark.parametrize(("height", "width", "channels"), [(16, 40, 3), (1, 8, 1)])
def test_images_are_moved_as_scipy_moves_them(height: int, width: int, channels: int) -> None:
    """The same shift, angle, scale and mirroring, with linear interpolation and reflection."""
    rows = torch.arange(24)
    images_BCHW = torch.rand(24, channels, height, width) * 255
    settings = {"shift": 0.2, "scale": 0.3, "rotation": 40.0}
    random = CounterRandom(0, 0, rows)
    found_BCHW = move(images_BCHW, placements(random, (height, width), flip=True, **settings))
    random = CounterRandom(0, 0, rows)  # the same numbers once more
    angles_B = random.uniform(low=-math.radians(40), high=math.radians(40)).tolist()
    scales_B2 = random.uniform(2, low=0.7, high=1.3).tolist()
    right_B, down_B = (
        random.integers(-int(0.2 * side), int(0.2 * side) + 1, 1)[:, 0].tolist()
        for side in (width, height)
    )
    mirrored_B = random.integers(0, 2).tolist()
    assert 6 < sum(mirrored_B) < 18
    middle = np.array([height - 1, width - 1]) / 2
    for row in range(24):
        cos, sin = math.cos(angles_B[row]), math.sin(angles_B[row])
        across, down = scales_B2[row]
        scaled = np.diag([down, -across if mirrored_B[row] else across])
        back = np.linalg.inv(np.array([[cos, sin], [-sin, cos]]) @ scaled)
        offset = middle - back @ (middle + np.array([down_B[row], right_B[row]]))
        for channel in range(channels):
            image = images_BCHW[row, channel].numpy()
            expected = affine_transform(image, back, offset, order=1, mode="mirror")
            assert found_BCHW[row, channel].numpy() == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_cpu_augments_large_images_in_turn_as_a_batch_at_once(channels: int) -> None:
    """Both move and light each image in the same way, to one level of 256."""
    rows, size = torch.arange(12), (64, 80)
    rough_BCHW = torch.rand(12, channels, 8, 10, generator=torch.Generator().manual_seed(0)) * 255
    images_BHWC = as_bytes(torch.nn.functional.interpolate(rough_BCHW, size, mode="bicubic"))
    random = CounterRandom(0, 0, rows)
    placed = placements(random, size, flip=True, shift=0.2, scale=0.3, rotation=40.0)
    light = lights(random, brightness=0.3)
    at_once = as_bytes(lit(move(as_floats(images_BHWC), placed), light))
    in_turn = lit_in_turn(move_in_turn(images_BHWC, placed), light)
    assert (at_once.int() - in_turn.int()).abs().max() <= 2
    assert (in_turn.int() - images_BHWC.int()).abs().float().mean() > 10


def test_half_of_the_images_get_another_light() -> None:
    """Brightness and contrast change by at most the given fraction, each image by itself."""
    light = lights(CounterRandom(0, 0, torch.arange(400)), brightness=0.1)
    low, high = (lit(torch.full((400, 1, 2, 2), level), light) for level in (50.0, 150.0))
    contrast_B = ((high - low) / 100)[:, 0, 0, 0]
    added_B = low[:, 0, 0, 0] - 50 * contrast_B
    changed_B = (contrast_B - 1).abs() > 1e-4
    assert 160 < int(changed_B.sum()) < 240
    assert float((contrast_B - 1).abs().max()) == pytest.approx(0.1, abs=0.005)
    assert float(added_B.abs().max()) == pytest.approx(25.5, abs=0.5)
    assert not added_B[~changed_B].abs().max() > 1e-3


def test_standard_shows_windows_of_the_reflected_image() -> None:
    """Each result is a crop of the padded image, mirrored or not; all of them occur."""
    augment, photo = _augmentation("standard", horizontal_flip=True, pad=1 / 24), _photo(3)
    padded = np.pad(photo, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    windows = [padded[y : y + 24, x : x + 24] for y in range(3) for x in range(3)]
    windows += [window[:, ::-1] for window in windows]
    possible = {window.tobytes() for window in windows}
    assert {augment(photo, epoch, 5).tobytes() for epoch in range(160)} == possible


def test_alternating_flips_show_both_sides_in_any_two_epochs() -> None:
    """Every image is mirrored in every second epoch; half of them in the first one."""
    augment, photo = (
        _augmentation("standard", horizontal_flip=True, alternate_flips=True, pad=0),
        _photo(3),
    )
    rows = range(60)
    mirrored = np.array(
        [
            [np.array_equal(augment(photo, epoch, row), photo[:, ::-1]) for row in rows]
            for epoch in range(3)
        ]
    )
    assert (mirrored[1:] == ~mirrored[:-1]).all()
    assert 15 <= mirrored[0].sum() <= 45


def test_erasing_replaces_one_rectangle_by_noise() -> None:
    """The erased part is a rectangle of 2 to 33 percent of the image, filled with noise."""
    images = torch.full((400, 32, 32, 3), 255, dtype=torch.uint8)
    erased = erase(images, CounterRandom(0, 0, torch.arange(400)), probability=0.5)
    changed = [image for image in erased if int(image.min()) < 255]
    assert 150 < len(changed) < 250
    for image in changed:
        places = (image < 255).any(2)
        rows, columns = places.any(1).nonzero()[:, 0], places.any(0).nonzero()[:, 0]
        box = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        height, width = box.shape[:2]
        assert 0.015 < height * width / 32**2 < 0.35
        assert 0.2 < height / width < 5
        assert box.float().std() > 40


@pytest.mark.parametrize(("height", "width", "channels"), [(16, 40, 3), (1, 8, 1)])
def test_windows_are_enlarged_as_by_torchvision(height: int, width: int, channels: int) -> None:
    """Pixels are interpolated linearly within the window; half of the images are mirrored."""
    rows = torch.arange(40)
    images_BCHW = torch.rand(40, channels, height, width) * 255
    windows_B4 = windows(
        (height, width), CounterRandom(0, 0, rows), smallest_area=0.1, largest_ratio=2.0
    )
    found_BCHW = enlarge(images_BCHW, windows_B4, CounterRandom(0, 1, rows), flip=True)
    mirrored_B = CounterRandom(0, 1, rows).integers(0, 2, 1)[:, 0].tolist()
    assert 10 < sum(mirrored_B) < 30
    for row, (top, left, tall, wide) in enumerate(windows_B4.int().tolist()):
        expected = resized_crop(
            images_BCHW[row], top, left, tall, wide, [height, width], antialias=False
        )
        expected = expected.flip(2) if mirrored_B[row] else expected
        assert torch.allclose(found_BCHW[row], expected, atol=0.02)


def test_windows_have_the_areas_ratios_and_places_of_the_settings() -> None:
    """Within the image, from the smallest area to all of it, as often tall as wide."""
    random = CounterRandom(0, 0, torch.arange(4000))
    found = windows((96, 96), random, smallest_area=0.2, largest_ratio=4 / 3)
    top, _, height, width = found.unbind(1)
    assert (found[:, :2] >= 0).all()
    assert (found[:, :2] + found[:, 2:] <= 96).all()
    area, ratio = height * width / 96**2, width / height
    assert 0.19 < float(area.min()) < 0.23
    assert 0.95 < float(area.max()) <= 1
    assert 0.73 < float(ratio.min()) < 0.77
    assert 0.47 < float((ratio > 1).float().mean()) < 0.53
    assert float((top / (96 - height))[height < 60].mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("channels", [1, 3])
def test_colors_change_as_by_torchvision(channels: int) -> None:
    """Brightness, then contrast, then saturation, each image by its own factors."""
    rows = torch.arange(30)
    images_BCHW = torch.rand(30, channels, 12, 10)
    settings = {"brightness": 0.4, "contrast": 0.5, "saturation": 0.6}
    found_BCHW = recolor(images_BCHW * 255, CounterRandom(0, 0, rows), **settings) / 255
    random = CounterRandom(0, 0, rows)
    factors_F = [random.uniform(1, 1, 1, low=1 - most, high=1 + most).flatten().tolist()
                 for most in settings.values()]  # fmt: skip
    for image, found, bright, strong, colored in zip(
        images_BCHW,
        found_BCHW,
        *(factors_F if channels == 3 else [*factors_F[:2], [1.0] * 30]),
        strict=True,
    ):
        expected = adjust_contrast(adjust_brightness(image, bright), strong)
        if channels == 3:
            expected = adjust_saturation(expected, colored)
        assert torch.allclose(found, expected, atol=1e-3)
