"""The operations of RandAugment and TrivialAugment compute what torchvision's do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import RandAugment, TrivialAugmentWide
from torchvision.transforms import functional as reference
from torchvision.transforms.functional import InterpolationMode

from patchline.plugins.augmentations import policy_module
from patchline.plugins.augmentations.policy_module import (
    BINS,
    OPERATIONS,
    choose_operation,
    randaugment_ranges,
    trivialaugment_ranges,
)
from tests.conftest import draw_photo

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
SIDE = 32
FACTORS = {"brightness", "colour", "contrast", "sharpness"}
BILINEAR = {"interpolation": InterpolationMode.BILINEAR, "fill": [128.0]}


def _photo(channels: int) -> Pixels:
    return np.ascontiguousarray(draw_photo(label=3, variant=1, side=SIDE)[:, :, :channels])


def _difference(ours: Pixels, theirs_CHW: torch.Tensor) -> Any:
    assert ours.dtype == np.uint8
    return np.abs(ours.astype(int) - theirs_CHW.permute(1, 2, 0).numpy().astype(int))


@pytest.mark.parametrize(("factor", "channels"), [(0.1, 1), (0.7, 3), (1.9, 3)])
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("brightness", reference.adjust_brightness),
        ("contrast", reference.adjust_contrast),
        ("colour", reference.adjust_saturation),
        ("sharpness", reference.adjust_sharpness),
    ],
)
def test_enhancements(name: str, theirs: Any, factor: float, channels: int) -> None:
    """Brightness, contrast, colour and sharpness agree to one level."""
    photo = _photo(channels)
    expected = theirs(torch.from_numpy(photo).permute(2, 0, 1), factor)
    assert _difference(getattr(policy_module, name)(photo, factor), expected).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
def test_tables(channels: int) -> None:
    """Posterize, solarize, autocontrast and equalize agree, the last two to one level."""
    photo, flat = _photo(channels), np.full((SIDE, SIDE, 3), 77, np.uint8)
    assert np.array_equal(policy_module.autocontrast(flat), flat)
    assert np.array_equal(policy_module.equalize(flat), flat)
    image = torch.from_numpy(photo).permute(2, 0, 1)
    for bits in (8, 5, 2):
        assert not _difference(
            policy_module.posterize(photo, bits), reference.posterize(image, bits)
        ).any()
    for threshold in (0.0, 100.0, 255.0):
        expected = reference.solarize(image, threshold)
        assert not _difference(policy_module.solarize(photo, threshold), expected).any()
    assert _difference(policy_module.autocontrast(photo), reference.autocontrast(image)).max() <= 1
    assert _difference(policy_module.equalize(photo), reference.equalize(image)).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
def test_translations_and_rotations(channels: int) -> None:
    """They agree to a few levels, away from the filled border."""
    photo = _photo(channels)
    image = torch.from_numpy(photo).permute(2, 0, 1)
    still: dict[str, Any] = {"angle": 0.0, "scale": 1.0, "shear": [0.0, 0.0], **BILINEAR}
    right = reference.affine(image, translate=[5, 0], **still)
    assert _difference(policy_module.translate_x(photo, 5.0), right).max() <= 1
    down = reference.affine(image, translate=[0, -7], **still)
    assert _difference(policy_module.translate_y(photo, -7.0), down).max() <= 1
    turned = reference.rotate(image, 30.0, **BILINEAR)
    assert np.quantile(_difference(policy_module.rotate(photo, 30.0), turned), 0.9) <= 6


def test_shears_move_lines_around_the_centre() -> None:
    """A row moves by its distance to the centre times the amount, and a column likewise."""
    stripe = np.full((33, 33, 1), 0, np.uint8)
    stripe[:, 16] = 200
    sheared = policy_module.shear_x(stripe, 0.5)
    assert (sheared[16, 16, 0], sheared[16 + 8, 16 + 4, 0]) == (200, 200)
    assert sheared[16 - 8, 16 - 4, 0] == 200
    across = policy_module.shear_y(stripe.transpose(1, 0, 2).copy(), 0.5)
    assert np.array_equal(across, sheared.transpose(1, 0, 2))


@pytest.mark.parametrize("policy", ["randaugment", "trivialaugment"])
def test_magnitudes_are_those_of_torchvision(policy: str) -> None:
    """For a 32-pixel image, every operation has the range and the steps of torchvision."""
    theirs: Any
    if policy == "randaugment":
        theirs = RandAugment()._augmentation_space(BINS, (SIDE, SIDE))
        ranges = randaugment_ranges(SIDE, SIDE)
    else:
        theirs = TrivialAugmentWide()._augmentation_space(BINS)
        ranges = trivialaugment_ranges(SIDE, SIDE)
    names = {"color": "colour", "auto_contrast": "autocontrast"}
    theirs = {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_"): space
        for name, space in theirs.items()
    }
    theirs = {names.get(name, name): space for name, space in theirs.items()}
    assert set(theirs) == set(OPERATIONS)
    for name, (magnitudes, signed) in theirs.items():
        for magnitude in range(BINS) if magnitudes.ndim else ():
            value = choose_operation(name, magnitude, ranges, negative=False).amount
            opposite = choose_operation(name, magnitude, ranges, negative=True).amount
            assert (opposite == value) == (not signed or magnitude == 0)
            value -= 1.0 if name in FACTORS else 0.0
            assert value == pytest.approx(float(magnitudes[magnitude]), abs=1e-4), name
