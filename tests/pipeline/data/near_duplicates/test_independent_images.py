"""Tests of `patchline.pipeline.data.near_duplicates.independent_images`."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.data.near_duplicates.independent_images import (
    ComparedPictures,
)


def burst(seed: int, count: int, side: int = 32, channels: int = 3) -> list[np.ndarray]:
    """Return pictures of one scene, which differ in the noise of a camera."""
    generator = np.random.default_rng(seed)
    blocks = generator.uniform(30, 220, (4, 4, channels))
    scene = np.kron(blocks, np.ones((side // 4, side // 4, 1)))
    noise = generator.normal(0, 3, (count, *scene.shape))
    return list(np.clip(scene + noise, 0, 255).astype(np.uint8))


def compared(keys: list[str], shots: list[np.ndarray], side: int = 32) -> ComparedPictures:
    """Return pictures that can be compared."""
    pictures = ComparedPictures()
    for key, picture in zip(keys, shots, strict=True):
        pictures.add(key, picture, (side, side))
    return pictures


@pytest.mark.parametrize("channels", [1, 5])
def test_a_burst_is_one_unit_whatever_its_bands(channels: int) -> None:
    """The images of six scenes, four of each, are six; without a picture, each is one."""
    keys = [f"{scene}-{shot}" for scene in range(6) for shot in "abcd"]
    shots = [each for scene in range(6) for each in burst(scene, 4, channels=channels)]
    pictures = compared(keys, shots)
    units = pictures.units([*keys, "x", "y"], [""] * 26)
    assert [len(set(units[4 * scene : 4 * scene + 4])) for scene in range(6)] == [1] * 6
    assert len(set(units.tolist())) == 8
    assert (pictures.lacking([*keys, "x", "y"]), pictures.too_small(keys)) == (2, 0)


def test_a_group_joins_images_and_the_units_that_they_are_in() -> None:
    """Two scenes of one patient are one unit, with the near duplicates of either."""
    keys, shots = list("abcdef"), [each for scene in range(3) for each in burst(scene, 2)]
    units = compared(keys, shots).units(keys, ["p", "", "p", "", "", ""])
    assert (len(set(units[:4])), len(set(units.tolist()))) == (1, 2)


def test_small_images_are_not_compared_but_exact_copies_are_known() -> None:
    """Different digits of 8 pixels look alike."""
    shots, keys = burst(0, 3, side=8), list("abcd")
    pictures = compared(keys, [*shots, shots[0]], 8)
    units = pictures.units(keys, [""] * 4)
    assert (len(set(units.tolist())), units[0], pictures.too_small(keys)) == (3, units[3], 4)
