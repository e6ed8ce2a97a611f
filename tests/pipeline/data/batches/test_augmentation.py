"""Augmentation: what an image looks like depends on (seed, epoch, index) and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.errors import ConfigError, PluginError
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE, use_plugin_files
from patchline.pipeline.training.augmentation_preview import preview_grid
from patchline.plugin_api import ImageSpec
from tests.conftest import draw_photo

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
PLUGIN_FILE = '''"""An augmentation that does not keep the contract."""

import albumentations

from patchline.plugin_api import AugmentationPlugin, PluginConfig


class NoSettings(PluginConfig):
    """There is nothing to set."""


plugin = AugmentationPlugin(
    summary="Wrong on purpose",
    paper="",
    config_class=NoSettings,
    build=lambda config, context: albumentations.Compose([{transform}]),
)
'''


def image_of(channels: int = 3, side: int = 32) -> Pixels:
    """Return one image without any symmetry."""
    return np.ascontiguousarray(draw_photo(2, 4, side)[:, :, :channels])


def augmentation(
    name: str = "light", *, seed: int = 0, channels: int = 3, side: int = 32, **settings: Any
) -> SeededAugmentation:
    """Return an augmentation of images of that size, mirroring included."""
    if name == "light":
        settings = {"horizontal_flip": True, **settings}
    spec = ImageSpec(
        channels=1 if channels == 1 else 3,
        height=side,
        width=side,
        mean=(0.5,) * channels,
        std=(0.2,) * channels,
        resize="crop",
    )
    return SeededAugmentation(PluginChoice.model_validate({"name": name, **settings}), spec, seed)


@pytest.fixture
def broken_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes a single-file augmentation and makes it available."""
    monkeypatch.setenv(FILES_VARIABLE, "")

    def make(transform: str) -> str:
        file = tmp_path / "wrong.py"
        file.write_text(PLUGIN_FILE.replace("{transform}", transform))
        use_plugin_files([file])
        return file.stem

    return make


@pytest.mark.parametrize("channels", [1, 3])
def test_same_seed_epoch_and_index_give_the_same_pixels(channels: int) -> None:
    """Two augmentations that were made apart change an image in exactly the same way."""
    first, second = augmentation(channels=channels), augmentation(channels=channels)
    image = image_of(channels)
    for epoch in range(3):
        for index in range(5):
            changed = first(image, epoch, index)
            assert changed.shape == (32, 32, channels)
            assert changed.dtype == np.uint8
            assert np.array_equal(changed, second(image, epoch, index))


def test_order_of_calls_does_not_matter() -> None:
    """Images that are augmented backwards, and some of them twice, look the same."""
    image, keys = image_of(), [(epoch, index) for epoch in range(3) for index in range(4)]
    augment = augmentation()
    forwards = {key: augment(image, *key) for key in keys}
    for key in [*keys[::-1], *keys[:3]]:
        assert np.array_equal(augment(image, *key), forwards[key])


def test_global_random_state_is_neither_read_nor_moved() -> None:
    """Seeding numpy and random changes no pixel, and augmenting leaves their states alone."""
    image, augment = image_of(), augmentation()
    seen = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the state that must not matter
        before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index] # noqa: NPY002 - numpy types the answer as tuple or dict; the same state
        seen.append(augment(image, 0, 0))
        after = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index] # noqa: NPY002 - the same
        assert after == before
    assert np.array_equal(seen[0], seen[1])


def test_seeds_epochs_and_indices_each_give_another_picture() -> None:
    """No two of many combinations of seed, epoch and index look alike."""
    image = image_of()
    pictures = {
        augmentation(seed=seed)(image, epoch, index).tobytes()
        for seed in range(3)
        for epoch in range(6)
        for index in range(6)
    }
    assert len(pictures) == 3 * 6 * 6


def test_transforms_decide_independently() -> None:
    """Mirroring and brightness each happen half of the time, and together a quarter of it."""
    image = np.full((8, 8, 3), 60, np.uint8)
    image[:, 4:] = 160
    augment = augmentation(side=8, shift=0, scale=0, rotation=0, brightness=0.4)
    outcomes = []
    for index in range(600):
        changed = augment(image, 0, index)
        mirrored = changed[0, 0, 0] > changed[0, -1, 0]
        same_light = {int(changed[0, 0, 0]), int(changed[0, -1, 0])} == {60, 160}
        outcomes.append((bool(mirrored), same_light))
    for mirrored in (True, False):
        for same_light in (True, False):
            share = outcomes.count((mirrored, same_light)) / len(outcomes)
            assert share == pytest.approx(0.25, abs=0.06), (mirrored, same_light)


def test_amount_of_change_does_not_follow_the_mirroring() -> None:
    """Mirrored images are not brighter than others, as they would be from one shared number."""
    image = np.full((8, 8, 3), 60, np.uint8)
    image[:, 4:] = 160
    augment = augmentation(side=8, shift=0, scale=0, rotation=0, brightness=0.4)
    mirrored, light = [], []
    for index in range(600):
        changed = augment(image, 1, index)
        mirrored.append(float(changed[0, 0, 0] > changed[0, -1, 0]))
        light.append(float(changed.mean()))
    assert abs(np.corrcoef(mirrored, light)[0, 1]) < 0.12
    assert np.unique(np.round(light)).size > 40


def test_neighbouring_images_and_epochs_are_not_correlated() -> None:
    """Whether an image is mirrored says nothing about the next image or the next epoch."""
    image = np.full((8, 8, 3), 60, np.uint8)
    image[:, 4:] = 160
    augment = augmentation(side=8, shift=0, scale=0, rotation=0, brightness=0)
    flips = np.array(
        [[augment(image, epoch, i)[0, 0, 0] > 100 for i in range(40)] for epoch in range(15)]
    ).astype(float)
    assert flips.mean() == pytest.approx(0.5, abs=0.07)
    assert abs(np.corrcoef(flips[:, :-1].ravel(), flips[:, 1:].ravel())[0, 1]) < 0.12
    assert abs(np.corrcoef(flips[:-1].ravel(), flips[1:].ravel())[0, 1]) < 0.12


def test_none_changes_nothing() -> None:
    """The augmentation `none` gives back every pixel."""
    augment = augmentation("none")
    assert all(np.array_equal(augment(image_of(), 0, index), image_of()) for index in range(10))


@pytest.mark.parametrize(
    ("transform", "made"),
    [
        ("albumentations.Resize(16, 16, p=1)", "(16, 16, 3)"),
        ("albumentations.CenterCrop(8, 32, p=1)", "(8, 32, 3)"),
        ("albumentations.ToFloat(p=1)", "float32"),
    ],
)
def test_augmentation_that_breaks_the_contract_is_named(
    broken_plugin: Any, transform: str, made: str
) -> None:
    """A plugin that changes the shape or the type of an image is refused by its name."""
    augment = augmentation(broken_plugin(transform))
    with pytest.raises(PluginError) as raised:
        augment(image_of(), 0, 0)
    sentence = str(raised.value)
    assert "'wrong'" in sentence
    assert made in sentence
    assert "(32, 32, 3)" in sentence


def test_setting_out_of_range_is_refused() -> None:
    """A setting that the plugin does not allow is named with its path."""
    with pytest.raises(ConfigError, match=r"augmentation\.shift"):
        augmentation(shift=0.9)


@pytest.mark.parametrize(("channels", "side", "factor"), [(1, 8, 8), (3, 32, 2), (3, 96, 1)])
def test_preview_shows_originals_and_epochs_side_by_side(
    channels: int, side: int, factor: int
) -> None:
    """The preview has a line for each image: the original first, then one column an epoch."""
    images = np.stack([image_of(channels, side), image_of(channels, side)[::-1]])
    augment = augmentation(channels=channels, side=side)
    grid = preview_grid(augment, images, np.array([1, 0]), epochs=3)
    cell = side * factor + 4
    assert grid.shape == (2 * cell, 4 * cell, 3)
    assert grid.dtype == np.uint8
    shown = grid[: side * factor : factor, : side * factor : factor]
    assert np.array_equal(shown, np.broadcast_to(images[1], shown.shape))
    second = grid[cell : cell + side * factor : factor, cell : cell + side * factor : factor]
    assert np.array_equal(second, np.broadcast_to(augment(images[0], 0, 0), second.shape))
