"""What augmentations and initial weights assume about images is measured, or said to be assumed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.symmetry import assumed_symmetries
from patchline.pipeline.data.symmetry.assumed_symmetries import (
    mirroring_settings,
    notes_on_mirroring_weights,
    unmeasured_symmetries,
)
from patchline.pipeline.data.symmetry.mirror_answer import MirrorSymmetry
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation


def saved(folder: Path, *transforms: Any) -> dict[str, Any]:
    """Return the augmentation settings of a pipeline of one's own."""
    file = folder / "mine.yaml"
    albumentations.save(albumentations.Compose(list(transforms)), file, data_format="yaml")
    return {"name": "custom", "file": str(file)}


def wedges(folder: Path) -> Path:
    """Write images of wedges that point to the left and to the right."""
    random = np.random.default_rng(0)
    for number in range(100):
        pixels = random.integers(60, 120, (24, 24, 3))
        row, column = random.integers(0, 12, 2)
        shape = np.tri(12, 12)[:, :: 1 - 2 * (number % 2)]
        pixels[row : row + 12, column : column + 12] += (100 * shape[..., None]).astype(int)
        file = folder / ("left", "right")[number % 2] / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
    return folder


def test_a_pipeline_of_ones_own_that_mirrors_is_contradicted(tmp_path: Path) -> None:
    """It counts like the setting horizontal_flip, in the notes and the answer."""
    transform = albumentations.OneOf([albumentations.SquareSymmetry(p=0.5)], p=1.0)
    plain = {"data": {"path": str(wedges(tmp_path / "wedges"))}}
    config = validated({**plain, "augmentation": saved(tmp_path, transform)})
    data = ingest(config, tmp_path / "work")
    assert data.mirror.is_contradicted
    assert data.notes[-1].startswith(
        "augmentation.name custom mirrors images (SquareSymmetry in mine.yaml), but mirrored images"
    )
    assert not ingest(validated(plain), tmp_path / "work").mirror.is_contradicted  # not remembered


@pytest.mark.parametrize("name", ["HorizontalFlip", "D4", "SquareSymmetry"])
def test_a_transform_that_mirrors_is_a_setting_that_mirrors(tmp_path: Path, name: str) -> None:
    """As far as it, and the group that it is in, has a probability."""
    transform = getattr(albumentations, name)(p=0.5)
    for probability in (0.5, 0.0):
        own = saved(tmp_path, albumentations.OneOf([transform], p=probability))
        assert bool(mirroring_settings(validated({"augmentation": own}))) is bool(probability)


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (albumentations.VerticalFlip(), True),
        (albumentations.RandomRotate90(), True),
        (albumentations.Transpose(), True),
        (albumentations.Rotate(limit=90), True),
        (albumentations.Rotate(limit=20), False),
        (albumentations.Affine(rotate=(-180, 10)), True),
        (albumentations.HueSaturationValue(), True),
        (albumentations.ChannelShuffle(), True),
        (albumentations.InvertImg(), True),
        (albumentations.RandomResizedCrop(size=(8, 8)), True),
        (albumentations.RandomBrightnessContrast(), False),
        (albumentations.HueSaturationValue(p=0.0), False),
        (albumentations.HorizontalFlip(), False),  # measured
    ],
)
def test_what_nothing_measures_is_named(tmp_path: Path, transform: Any, named: bool) -> None:
    """Vertical flips, large rotations, other colours and whatever is not known to be harmless."""
    words = unmeasured_symmetries(validated({"augmentation": saved(tmp_path, transform)}))
    assert (type(transform).__name__ in words) is named
    assert bool(words) is named


@pytest.mark.parametrize(
    ("settings", "assumed"),
    [
        ({"name": "light"}, ""),
        ({"name": "light", "rotation": 180}, "rotations of up to 180 degrees"),
        ({"name": "standard"}, ""),
        ({"name": "standard", "pad": 0.5}, "shifts of up to 50% of a side"),
        ({"name": "resized_crop"}, "crops to as little as 35% of the area"),
        ({"name": "trivialaugment"}, "rotations of up to 135 degrees and inverted bright values"),
        ({"name": "randaugment", "magnitude": 0}, ""),
        ({"name": "strong", "policy": "randaugment", "pad": 0.4}, "values (solarize) and shifts"),
    ],
)
def test_built_in_augmentations_declare_what_they_assume(
    settings: dict[str, Any], assumed: str
) -> None:
    """It follows their settings; nothing is said of what nearly all images allow."""
    config = validated({"augmentation": settings})
    words = unmeasured_symmetries(config)
    assert assumed in words
    assert bool(words) is bool(assumed)
    assert mirroring_settings(config) == ()


def test_an_augmentation_that_declares_nothing_is_not_known(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence of a plugin is no promise; a run says so, as it says what is assumed."""
    silent = replace(load_augmentation("light"), assumptions=None)
    for name, words in (
        ("light", "under the augmentation light is not known"),
        ("trivialaugment", "assumed, not measured: .*choose another augmentation.name"),
    ):
        config = validated({"data": {"path": str(photos)}, "augmentation": {"name": name}})
        with monkeypatch.context() as patched:
            if name == "light":
                patched.setattr(assumed_symmetries, "load_augmentation", lambda _name: silent)
            data = ingest(config, photos.parent / "work")
        assert any(re.search(words, note) for note in data.notes)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ({"test_time_flip": True}, "set model.test_time_flip to false"),
        (
            {"patch_embedding": {"name": "whitened", "mirror_equivariant": True}},
            "use other initial weights",
        ),
    ],
)
def test_initial_weights_that_mirror_are_said_to(model: dict[str, Any], remedy: str) -> None:
    """A model that cannot tell left from right is not fine-tuned on left and right in silence."""
    config = validated({"model": {"name": "vit", **model}})
    unknown = MirrorSymmetry(answer="unknown", origin="measured")
    known = MirrorSymmetry(answer="symmetric", origin="measured")
    [note] = notes_on_mirroring_weights(validated({}), config, unknown)
    assert note.endswith(remedy)
    assert notes_on_mirroring_weights(validated({}), config, known) == []
    assert notes_on_mirroring_weights(config, config, unknown) == []
