"""A GPU changes images as RandAugment and TrivialAugment do on the CPU; here with torch's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import SeededAugmentation, SeededTransform
from patchline.plugin_api import AugmentationContext
from patchline.plugins.augmentations.policy_module import (
    BINS,
    OPERATIONS,
    Policy,
    choose_operation,
    randaugment_ranges,
    trivialaugment_ranges,
)
from tests.conftest import draw_photo
from tests.plugins.model_parity import image_spec

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
EXAMPLE = Path(__file__).parents[2] / "examples" / "augmentation.yaml"
MOVING = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
OF_GREY = ("colour", "contrast")
SIZES = [(64, 48, 3), (33, 40, 1), (1, 8, 1)]
RANGES = (randaugment_ranges, trivialaugment_ranges)


def images_of(height: int, width: int, channels: int, count: int) -> Pixels:
    """Return photographs, one that is nearly flat, one that is flat, and one of noise."""
    side = max(height, width)
    photos = np.stack([draw_photo(number, number, side) for number in range(count)])
    photos[1] = photos[1] // 32 + 100
    photos[2] = 77
    photos[3] = np.random.default_rng(0).integers(0, 256, photos[3].shape, np.uint8)
    return np.ascontiguousarray(photos[:, :height, :width, :channels])


@pytest.mark.parametrize(("height", "width", "channels"), SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_that_of_single_images(
    name: str, height: int, width: int, channels: int
) -> None:
    """At all magnitudes: pixels that move to one level of 255, all other values exactly.

    How NumPy rounds the grey of a pixel depends on the processor, which colour and contrast show.
    """
    chosen = {
        choose_operation(name, magnitude, ranges(height, width), negative=negative)
        for ranges in RANGES
        for magnitude in range(BINS)
        for negative in (False, True)
    }
    images_BHWC = images_of(height, width, channels, max(4, len(chosen)))
    amounts = np.resize(sorted(amount for _, amount in chosen), len(images_BHWC)).tolist()
    policy = Policy(randaugment_ranges(height, width), 1, 0)
    single = policy.transforms[0]
    drawn = np.array([[[OPERATIONS.index(name), amount]] for amount in amounts])
    before = images_BHWC.copy()
    changed = policy.change(torch.from_numpy(images_BHWC), torch.from_numpy(drawn)).numpy()
    assert np.array_equal(images_BHWC, before)
    expected = [
        single.apply(image, operations=[(name, amount)])
        for image, amount in zip(images_BHWC, amounts, strict=True)
    ]
    differences = np.abs(changed.astype(int) - np.stack(expected).astype(int))
    if name in MOVING:
        assert np.mean(differences <= 1) >= 0.999
    elif name in OF_GREY and channels > 1:
        assert differences.max() <= 1
        assert np.mean(differences) < 0.05
    else:
        assert differences.max() == 0


@pytest.mark.parametrize(("num_ops", "magnitude"), [(1, None), (3, 9)])
def test_draws_are_those_of_single_images(num_ops: int, magnitude: int | None) -> None:
    """What is drawn without an image is what a call with the same key applies."""
    ranges = trivialaugment_ranges(16, 16)
    policy = Policy(ranges, num_ops, magnitude)
    seeded = SeededTransform(policy, AugmentationContext(3, 16, 16), "policy")
    image = draw_photo(0, 0, 16)
    for row in range(50):
        drawn = [(OPERATIONS[int(number)], amount) for number, amount in seeded.draw([1, 2, row])]
        seeded(image, [1, 2, row])
        assert policy.transforms[0].get_applied_params()["operations"] == drawn


def augmentation(name: str, *, on_device: bool, **settings: Any) -> SeededAugmentation:
    """Return an augmentation of small images, which changes whole batches or single images."""
    choice = PluginChoice.model_validate({"name": name, "horizontal_flip": True, **settings})
    return SeededAugmentation(choice, image_spec(24), 5, on_device=on_device)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("randaugment", {"num_ops": 2, "magnitude": 12}),
        ("trivialaugment", {}),
        ("strong", {"policy": "randaugment", "erase": 0.5}),
    ],
    ids=["randaugment", "trivialaugment", "strong"],
)
def test_batches_look_as_images_one_by_one(name: str, settings: dict[str, Any]) -> None:
    """The whole augmentation agrees, repeats itself bit for bit, and ignores the batch."""
    images, rows = images_of(24, 24, 3, 96), list(range(96))
    device = augmentation(name, on_device=True, **settings)
    host = augmentation(name, on_device=False, **settings)
    assert (device.changes_single_images, host.changes_single_images) == (False, True)
    assert device.by_image(images, 1, rows) is images
    assert host.draw(1, rows) is None

    def of_device(chosen: list[int]) -> torch.Tensor:
        drawn = device.draw(1, chosen)
        return device.by_batch(torch.from_numpy(images[chosen]), 1, torch.tensor(chosen), drawn)

    changed = of_device(rows)
    assert torch.equal(changed, of_device(rows))
    assert torch.equal(changed[40:60].flip(0), of_device(rows[40:60][::-1]))
    one_by_one = torch.from_numpy(host.by_image(images, 1, rows))
    expected = host.by_batch(one_by_one, 1, torch.tensor(rows))
    near = ((changed.int() - expected.int()).abs() <= 1).float()
    assert near.mean() > 0.98  # a level more before equalize or posterize is several after it


def test_a_pipeline_without_draws_stays_on_the_cpu() -> None:
    """Any other Compose changes single images, also for a GPU."""
    choice = PluginChoice.model_validate({"name": "custom", "file": str(EXAMPLE)})
    custom = SeededAugmentation(choice, image_spec(24), 0, on_device=True)
    assert custom.changes_single_images
    assert custom.draw(0, [0]) is None
