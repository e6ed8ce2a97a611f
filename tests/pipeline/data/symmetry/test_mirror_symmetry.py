"""Mirror images and other assumptions: measured before they are used, or said to be assumed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw

from benchmarks.statistical_methods import MirrorSetting, draw_mirrored_data
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest, resolve
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, encode_labels
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.symmetry import assumed_symmetries
from patchline.pipeline.data.symmetry import mirror_symmetry as symmetry
from patchline.pipeline.data.symmetry.assumed_symmetries import (
    MirrorSymmetry,
    describe_unmeasured_symmetries,
    find_mirroring_settings,
    notes_on_mirroring_weights,
)
from patchline.pipeline.data.symmetry.mirror_probe import (
    FEWEST,
    SIDE,
    MeasuredSymmetry,
    compare_mirror_images,
    with_one_label,
)
from patchline.pipeline.evaluation.inspection.inspecting import inspect_data
from patchline.pipeline.planning.planner import plan_facts
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation

Array = np.ndarray[Any, Any]
Draw = Callable[[ImageDraw.ImageDraw, str, Array, tuple[int, ...]], None]
CLASSES = ("left", "right")
_BRIGHTNESS = ((130, 256), (0, 100))


def _arrow(pen: ImageDraw.ImageDraw, label: str, at: Array, colour: tuple[int, ...]) -> None:
    """Draw an arrow to the left, right, top or bottom."""
    turn = {"right": (1, 0), "left": (-1, 0), "up": (0, -1), "down": (0, 1)}[label]
    along, across = np.array(turn), np.array(turn[::-1])
    tip = at + 8 * along
    for end in (at - 8 * along, tip - 5 * along + 5 * across, tip - 5 * along - 5 * across):
        pen.line([*tip, *end], fill=colour, width=2)


def _blob(pen: ImageDraw.ImageDraw, label: str, at: Array, colour: tuple[int, ...]) -> None:
    """Draw a flower seen from above: petals in a ring, as many as the label says."""
    radius, turn = 8, float(np.prod(colour))
    for petal in range(int(label)):
        angle = turn + 2 * np.pi * petal / int(label)
        x, y = at + radius * np.array([np.cos(angle), np.sin(angle)])
        pen.ellipse([x - 3, y - 3, x + 3, y + 3], fill=colour)


def images(draw: Draw, labels: tuple[str, ...], count: int) -> tuple[Array, list[str]]:
    """Return noisy images with random colours and places, the classes in turn."""
    generator, found = np.random.default_rng(0), []
    names = [labels[number % len(labels)] for number in range(count)]
    for name in names:
        paper, colour = (tuple(generator.integers(*ends, 3).tolist()) for ends in _BRIGHTNESS)
        image = Image.new("RGB", (SIDE, SIDE), paper)
        draw(ImageDraw.Draw(image), name, 16 + generator.integers(-3, 4, 2), colour)
        noisy = np.asarray(image, np.float64) + generator.normal(0, 15, (SIDE, SIDE, 3))
        found.append(np.clip(noisy, 0, 255).astype(np.uint8))
    return np.stack(found), names


def result(images_NSSC: Array, names: list[str]) -> MeasuredSymmetry:
    """Measure images that do not belong together."""
    _, labels = np.unique(names, return_inverse=True)
    return compare_mirror_images(images_NSSC, labels, np.arange(len(names)))


def test_classes_that_differ_from_their_mirror_images_are_noticed() -> None:
    """Arrows in four directions, and a pair of them among six classes of flowers."""
    arrows, names = images(_arrow, ("left", "right", "up", "down"), 100)
    assert result(arrows, names).answer == "asymmetric"
    flowers, kinds = images(_blob, ("1", "2", "3", "4", "6", "8"), 180)
    arrows, names = images(_arrow, CLASSES, 60)
    assert result(np.concatenate([flowers, arrows]), kinds + names).answer == "asymmetric"


@pytest.mark.parametrize("case", ["too few", "noise", "blank", "labels at random"])
def test_what_cannot_be_known_is_unknown(case: str) -> None:
    """No evidence is not taken for symmetry."""
    generator = np.random.default_rng(0)
    pixels, names = images(_arrow, CLASSES, FEWEST - 1 if case == "too few" else 80)
    if case == "noise":
        pixels = generator.integers(0, 256, pixels.shape, np.uint8)
    elif case == "blank":
        pixels = np.full_like(pixels, 90)
    elif case == "labels at random":
        names = generator.permutation(names).tolist()
    assert result(pixels, names).answer == "unknown"


def test_images_without_labels_are_told_from_their_mirror_images_or_not() -> None:
    """Arrows to one side are; flowers, every mirror image of which could be another, are not."""
    arrows, _ = images(_arrow, ("left",), 200)
    flowers, names = images(_blob, ("1", "3", "6"), 200)
    assert result(arrows, [""] * 200).answer == "asymmetric"
    assert result(flowers, [""] * 200).answer == result(flowers, names).answer == "symmetric"


def test_copies_are_never_on_both_sides_of_a_fold() -> None:
    """Images without structure, ten copies each, do not look recognisable."""
    noise = np.random.default_rng(1).integers(0, 256, (10, SIDE, SIDE, 3)).astype(np.uint8)
    units = np.repeat(np.arange(10), 10)
    found = compare_mirror_images(noise[units], units % 2, units)
    assert found.answer == "unknown"
    assert found.accuracy.value < 0.8


def _answers(groups: tuple[int, ...], size: int, *, symmetric: bool = True) -> set[str]:
    """Return what is answered for three made data sets."""
    setting = MirrorSetting("", groups, size)
    made = (
        draw_mirrored_data(np.random.default_rng(seed), setting, symmetric=symmetric)
        for seed in range(3)
    )
    return {compare_mirror_images(*each).answer for each in made}


def test_few_groups_that_face_one_way_may_do_so_by_chance() -> None:
    """Twelve groups of four classes: eight coin tosses; with 24 it is no chance any more."""
    assert _answers((3,) * 4, 6, symmetric=False) == {"unknown"}
    assert _answers((6,) * 4, 3, symmetric=False) == {"asymmetric"}


# -- from the files to the settings --------------------------------------------------------------


def folder(path: Path, draw: Draw, labels: tuple[str, ...], count: int) -> Path:
    """Write images into class folders."""
    for number, (pixels, name) in enumerate(zip(*images(draw, labels, count), strict=True)):
        file = path / f"class {name}/{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return path


def read(place: Path, **settings: Any) -> tuple[RunConfig, IngestedData]:
    """Return a config and what an ingestion finds."""
    config = validate_config({**settings, "data": {"path": str(place), **settings.get("data", {})}})
    return config, ingest(config, place.parent / "work")


def flips(config: RunConfig, data: IngestedData) -> object:
    """Return whether the resolved augmentation flips."""
    return resolve(config, data).augmentation.settings["horizontal_flip"]


@pytest.fixture(scope="module")
def arrows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of arrows; what was measured on them is kept beside it."""
    return folder(tmp_path_factory.mktemp("symmetry") / "arrows", _arrow, CLASSES, 100)


def test_arrows_are_not_mirrored_and_the_reason_is_said(arrows: Path) -> None:
    """Nothing is set: the plan, the notes, the resolved config and the inspection agree."""
    config, data = read(arrows)
    assert data.mirror.answer == "asymmetric"
    assert data.notes[-1] == "images are not mirrored: they do not show the same classes then"
    assert flips(config, data) is False
    assert resolve(config, data).data.mirror_symmetric is False
    facts = plan_facts(config, data).data
    assert not facts.mirror_symmetric
    assert "measured on" in facts.mirror
    inspected = inspect_data(config, arrows.parent / "work").result
    [finding] = [each for each in inspected.findings if each.kind == "mirror_asymmetric"]
    assert (finding.severity, set(finding.classes)) == ("note", {"class left", "class right"})


@pytest.mark.parametrize(
    "settings",
    [
        {"data": {"mirror_symmetric": True}},
        {"augmentation": {"name": "light", "horizontal_flip": True}},
        {"model": {"name": "vit", "test_time_flip": True}},
    ],
)
def test_settings_count_but_a_contradiction_is_said(arrows: Path, settings: dict[str, Any]) -> None:
    """Whoever mirrors arrows gets mirrored arrows, and a warning with the evidence.

    What is remembered without the setting does not take its warning away.
    """
    assert not read(arrows)[1].mirror.is_contradicted
    config, data = read(arrows, **settings)
    assert data.mirror.is_contradicted
    assert flips(config, data) is ("model" not in settings)
    assert " is true, but mirrored images do not show the same classes" in data.notes[-1]
    if "data" in settings:
        inspected = inspect_data(config, arrows.parent / "work").result
        [finding] = [each for each in inspected.findings if each.kind == "mirror_asymmetric"]
        assert finding.severity == "warning"


def test_images_that_are_mirrored_without_knowing_are_said_to_be() -> None:
    """A setting of the user counts; without one, none are mirrored, and the remedy is said."""
    few = folder(Path("few"), _blob, ("1", "6"), 24)
    config, data = read(few)
    assert flips(config, data) is False
    assert re.search("not known.*set data.mirror_symmetric", data.notes[-1])
    assert resolve(config, data).data.mirror_symmetric is None
    _, data = read(few, augmentation={"name": "light", "horizontal_flip": True})
    assert "but augmentation.horizontal_flip is true, so they are used" in data.notes[-1]


def test_the_measurement_sees_training_images_alone_and_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flowers are mirrored; a run with the same training images does not open one again."""
    config, data = read(folder(Path("flowers"), _blob, ("1", "3", "6"), 100))
    assert flips(config, data) is True
    assert data.mirror.note.startswith("mirrored images show the same classes, measured on")
    rows = pd.read_parquet(data.manifest_file)
    training = rows[rows["split"] == "train"]
    monkeypatch.setattr(symmetry, "root_image_bytes", lambda _root, path: pytest.fail(path))
    files = symmetry.Files(data.root, PixelMapping())
    again = symmetry.measure_symmetry(training, files, Path("work"))
    assert again == data.mirror
    assert f"measured on {len(training)} training images" in again.note


def test_sets_with_left_and_right_arrows_are_not_symmetric() -> None:
    """Each label stands for some of the images; others that they have do not hide the direction."""
    pixels, names = images(_arrow, CLASSES, 160)
    chosen = np.random.default_rng(0).random((160, 3)) < 0.5
    sets = [[*np.array(list("xyz"))[own], name] for own, name in zip(chosen, names, strict=True)]
    rows = pd.DataFrame({"label": [encode_labels(each) for each in sets]})
    rows["sha256"] = [f"{number:064x}" for number in range(160)]
    found = result(pixels, with_one_label(rows, MULTI_LABEL)["label"].tolist())
    assert found.answer == "asymmetric"


def saved(folder: Path, *transforms: Any) -> dict[str, Any]:
    """Return the augmentation settings of a pipeline of one's own."""
    file = folder / "mine.yaml"
    albumentations.save(albumentations.Compose(list(transforms)), file, data_format="yaml")
    return {"name": "custom", "file": str(file)}


@pytest.mark.parametrize("name", ["HorizontalFlip", "D4", "SquareSymmetry"])
def test_a_transform_that_mirrors_is_a_setting_that_mirrors(tmp_path: Path, name: str) -> None:
    """As far as it, and the group that it is in, has a probability."""
    transform = getattr(albumentations, name)(p=0.5)
    for probability in (0.5, 0.0):
        own = saved(tmp_path, albumentations.OneOf([transform], p=probability))
        assert bool(find_mirroring_settings(validate_config({"augmentation": own}))) is bool(
            probability
        )


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (albumentations.VerticalFlip(), True),
        (albumentations.RandomRotate90(), True),
        (albumentations.Rotate(limit=90), True),
        (albumentations.Rotate(limit=20), False),
        (albumentations.Affine(rotate=(-180, 10)), True),
        (albumentations.HueSaturationValue(), True),
        (albumentations.RandomResizedCrop(size=(8, 8)), True),
        (albumentations.RandomBrightnessContrast(), False),
        (albumentations.HueSaturationValue(p=0.0), False),
        (albumentations.HorizontalFlip(), False),  # measured
    ],
)
def test_what_nothing_measures_is_named(tmp_path: Path, transform: Any, named: bool) -> None:
    """Vertical flips, large rotations, other colours and whatever is not known to be harmless."""
    words = describe_unmeasured_symmetries(
        validate_config({"augmentation": saved(tmp_path, transform)})
    )
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
    config = validate_config({"augmentation": settings})
    words = describe_unmeasured_symmetries(config)
    assert assumed in words
    assert bool(words) is bool(assumed)
    assert find_mirroring_settings(config) == ()


def test_an_augmentation_that_declares_nothing_is_not_known(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence of a plugin is no promise; a run says so, as it says what is assumed."""
    silent = replace(load_augmentation("light"), assumptions=None)
    for name, words in (
        ("light", "under the augmentation light is not known"),
        ("trivialaugment", "assumed, not measured: .*choose another augmentation.name"),
    ):
        config = validate_config({"data": {"path": str(photos)}, "augmentation": {"name": name}})
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
    config = validate_config({"model": {"name": "vit", **model}})
    unknown = MirrorSymmetry(answer="unknown", origin="measured")
    known = MirrorSymmetry(answer="symmetric", origin="measured")
    [note] = notes_on_mirroring_weights(validate_config({}), config, unknown)
    assert note.endswith(remedy)
    assert notes_on_mirroring_weights(validate_config({}), config, known) == []
    assert notes_on_mirroring_weights(config, config, unknown) == []


def test_what_few_images_or_groups_have_in_common_is_no_asymmetry() -> None:
    """Each group of symmetric classes happens to face one way; a class is one to three of them."""
    assert _answers((1,) * 60, 1) == _answers((1,) * 4, 12) == {"unknown"}
    assert "asymmetric" not in _answers((3,) * 4, 8)
