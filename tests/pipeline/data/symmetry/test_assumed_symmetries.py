"""What augmentations and initial weights assume about images is measured, or said to be assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.symmetry.assumed_symmetries import (
    mirroring_settings,
    notes_on_mirroring_weights,
    unmeasured_symmetries,
)
from patchline.pipeline.data.symmetry.mirror_answer import Answer, MirrorSymmetry
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.inspection.inspecting import inspect_data
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation


def saved(folder: Path, *transforms: Any) -> dict[str, Any]:
    """Return the augmentation settings of a pipeline of one's own."""
    file = folder / "mine.yaml"
    albumentations.save(albumentations.Compose(list(transforms)), file, data_format="yaml")
    return {"name": "custom", "file": str(file)}


def wedges(folder: Path, count: int = 40) -> Path:
    """Write images of wedges that point to the left and to the right."""
    random = np.random.default_rng(0)
    below = np.tri(12, 12)
    for number in range(count):
        label = ("left", "right")[number % 2]
        pixels = random.integers(60, 120, (24, 24, 3))
        row, column = random.integers(0, 12, 2)
        shape = below if label == "left" else below[:, ::-1]
        pixels[row : row + 12, column : column + 12] += (100 * shape[..., None]).astype(int)
        file = folder / label / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 100 wedges; what was measured on them is kept beside it."""
    return wedges(tmp_path_factory.mktemp("symmetry") / "wedges", 100)


@pytest.mark.parametrize("name", ["HorizontalFlip", "D4", "SquareSymmetry"])
def test_a_pipeline_of_ones_own_that_mirrors_is_contradicted(
    tmp_path: Path, measured: Path, name: str
) -> None:
    """It counts like the setting horizontal_flip, in the notes and the inspection."""
    work = measured.parent / "work"
    transform = albumentations.OneOf([getattr(albumentations, name)(p=0.5)], p=1.0)
    plain = {"data": {"path": str(measured)}}
    config = validated({**plain, "augmentation": saved(tmp_path, transform)})
    data = ingest(config, work)
    assert data.mirror.is_contradicted
    assert data.notes[-1].startswith(
        f"augmentation.name custom mirrors images ({name} in mine.yaml), but mirrored images do "
        "not show the same classes, measured on"
    )
    inspected = inspect_data(config, work).result
    finding = next(each for each in inspected.findings if each.kind == "mirror_asymmetric")
    assert finding.severity == "warning"
    assert not ingest(validated(plain), work).mirror.is_contradicted  # nothing is remembered


def test_a_flip_that_never_happens_is_no_flip(tmp_path: Path) -> None:
    """Neither a transform nor a group of probability 0 counts."""
    never = albumentations.OneOf([albumentations.HorizontalFlip(p=1.0)], p=0.0)
    settings = saved(tmp_path, never, albumentations.HueSaturationValue(p=0.0))
    config = validated({"augmentation": settings})
    assert mirroring_settings(config) == ()
    assert unmeasured_symmetries(config) == ""


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (albumentations.VerticalFlip(), True),
        (albumentations.RandomRotate90(), True),
        (albumentations.Transpose(), True),
        (albumentations.D4(), True),
        (albumentations.Rotate(limit=90), True),
        (albumentations.Rotate(limit=20), False),
        (albumentations.Affine(rotate=(-180, 10)), True),
        (albumentations.Affine(rotate=(-10, 10)), False),
        (albumentations.HueSaturationValue(), True),
        (albumentations.ColorJitter(), True),
        (albumentations.ChannelShuffle(), True),
        (albumentations.ToGray(), True),
        (albumentations.InvertImg(), True),
        (albumentations.RandomResizedCrop(size=(8, 8)), True),
        (albumentations.GaussianBlur(), False),
        (albumentations.RandomBrightnessContrast(), False),
        (albumentations.HorizontalFlip(), False),  # measured
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bool) else str(value),
)
def test_what_nothing_measures_is_named(tmp_path: Path, transform: Any, named: bool) -> None:
    """Vertical flips, large rotations, other colours and whatever is not known to be harmless."""
    words = unmeasured_symmetries(validated({"augmentation": saved(tmp_path, transform)}))
    assert (type(transform).__name__ in words) is named
    assert bool(words) is named


@pytest.mark.parametrize(
    ("settings", "assumed"),
    [
        ({"name": "none"}, ""),
        ({"name": "light"}, ""),
        ({"name": "light", "rotation": 180}, "rotations of up to 180 degrees"),
        ({"name": "standard"}, ""),
        ({"name": "standard", "pad": 0.5}, "shifts of up to 50% of a side"),
        ({"name": "resized_crop"}, "crops to as little as 35% of the area"),
        ({"name": "resized_crop", "smallest_area": 0.6}, ""),
        ({"name": "trivialaugment"}, "rotations of up to 135 degrees and inverted bright values"),
        ({"name": "randaugment"}, "inverted bright values"),
        ({"name": "randaugment", "magnitude": 0}, ""),
        ({"name": "strong"}, "rotations of up to 135 degrees"),
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


def test_trivialaugment_declares_its_largest_rotation() -> None:
    """The number in the sentence is that of the operations."""
    from patchline.plugins.augmentations.policy_module import (
        randaugment_ranges,
        trivialaugment_ranges,
    )

    words = unmeasured_symmetries(validated({"augmentation": {"name": "trivialaugment"}}))
    assert f"{trivialaugment_ranges(32, 32).rotation:g} degrees" in words
    assert randaugment_ranges(32, 32).rotation <= 45


def test_an_augmentation_that_declares_nothing_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence of a plugin is no promise; a run says so."""
    from dataclasses import replace

    from patchline.pipeline.data.symmetry import assumed_symmetries

    silent = replace(load_augmentation("light"), assumptions=None)
    monkeypatch.setattr(assumed_symmetries, "load_augmentation", lambda _name: silent)
    data = ingest(
        validated({"data": {"path": str(wedges(tmp_path / "wedges"))}}), tmp_path / "work"
    )
    assert any("under the augmentation light is not known" in note for note in data.notes)


def test_an_assumption_is_noted_by_run_and_inspection(tmp_path: Path) -> None:
    """The sentence names the setting that ends it."""
    path = str(wedges(tmp_path / "wedges"))
    config = validated({"data": {"path": path}, "augmentation": {"name": "trivialaugment"}})
    for notes in (
        ingest(config, tmp_path / "work").notes,
        inspect_data(config, tmp_path / "work").result.notes,
    ):
        (note,) = (each for each in notes if each.startswith("assumed, not measured: "))
        assert "choose another augmentation.name" in note


def test_a_missing_pipeline_is_a_plain_error(tmp_path: Path) -> None:
    """Looking for what it assumes says that the file cannot be read."""
    settings = {"name": "custom", "file": str(tmp_path / "none.yaml")}
    with pytest.raises(ConfigError, match=r"none.yaml cannot be read: .*Correct augmentation"):
        unmeasured_symmetries(validated({"augmentation": settings}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("symmetric", ""),
        ("asymmetric", "but mirrored images do not show the same classes"),
        ("unknown", "but whether mirrored images show the same classes is not known"),
    ],
)
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
def test_initial_weights_that_mirror_are_said_to(
    answer: Answer, words: str, model: dict[str, Any], remedy: str
) -> None:
    """A model that cannot tell left from right is not fine-tuned on left and right in silence."""
    before, mirror = validated({}), MirrorSymmetry(answer=answer, origin="measured")
    config = validated({"model": {"name": "vit", **model}})
    notes = notes_on_mirroring_weights(before, config, mirror)
    assert len(notes) == bool(words)
    assert all(words in note and note.endswith(remedy) for note in notes)
    assert notes_on_mirroring_weights(config, config, mirror) == []
