"""Mirror images: measured before they are used; text, digits and left and right are noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits

from benchmarks.statistical_methods import MirrorSetting, mirrored_data
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest, resolve
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.symmetry import mirror_symmetry as symmetry
from patchline.pipeline.data.symmetry.mirror_probe import FEWEST, SIDE, Measured, measured
from patchline.pipeline.inspection.inspecting import inspect_data
from patchline.pipeline.planning.planner import plan_facts

Array = np.ndarray[Any, Any]
Draw = Callable[[ImageDraw.ImageDraw, str, Array, tuple[int, int, int]], None]
CLASSES = ("left", "right")


def _arrow(pen: ImageDraw.ImageDraw, label: str, at: Array, colour: tuple[int, int, int]) -> None:
    """Draw an arrow to the left, right, top or bottom."""
    turn = {"right": (1, 0), "left": (-1, 0), "up": (0, -1), "down": (0, 1)}[label]
    along, across = np.array(turn), np.array(turn[::-1])
    tip = at + 8 * along
    for end in (at - 8 * along, tip - 5 * along + 5 * across, tip - 5 * along - 5 * across):
        pen.line([*tip, *end], fill=colour, width=2)


def _text(pen: ImageDraw.ImageDraw, label: str, at: Array, colour: tuple[int, int, int]) -> None:
    size = 22 if len(label) == 1 else 11
    pen.text(tuple(at - size // 2), label, fill=colour, font=ImageFont.load_default(size=size))


def _blob(pen: ImageDraw.ImageDraw, label: str, at: Array, colour: tuple[int, int, int]) -> None:
    """Draw a flower seen from above: petals in a ring, as many as the label says."""
    radius, turn = 8, float(np.prod(colour))
    for petal in range(int(label)):
        angle = turn + 2 * np.pi * petal / int(label)
        x, y = at + radius * np.array([np.cos(angle), np.sin(angle)])
        pen.ellipse([x - 3, y - 3, x + 3, y + 3], fill=colour)


def images(
    draw: Draw, labels: tuple[str, ...], count: int, seed: int = 0
) -> tuple[Array, list[str]]:
    """Return noisy images with random colours and places, the classes in turn."""
    generator, found = np.random.default_rng(seed), []
    names = [labels[number % len(labels)] for number in range(count)]
    for name in names:
        paper = tuple(int(value) for value in generator.integers(130, 256, 3))
        red, green, blue = (int(value) for value in generator.integers(0, 100, 3))
        image = Image.new("RGB", (SIDE, SIDE), paper)
        draw(ImageDraw.Draw(image), name, 16 + generator.integers(-3, 4, 2), (red, green, blue))
        noisy = np.asarray(image, np.float64) + generator.normal(0, 15, (SIDE, SIDE, 3))
        found.append(np.clip(noisy, 0, 255).astype(np.uint8))
    return np.stack(found), names


def result(images_NSSC: Array, names: list[str]) -> Measured:
    """Measure images that do not belong together."""
    _, labels = np.unique(names, return_inverse=True)
    return measured(images_NSSC, labels, np.arange(len(names)))


@pytest.mark.parametrize(
    ("draw", "labels", "count"),
    [
        (_arrow, CLASSES, 40),
        (_arrow, ("left", "right", "up", "down"), 100),
        (_text, ("b", "d"), 60),
        (_text, tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), 520),
        (_text, ("cat", "dog", "tree"), 75),
    ],
)
def test_classes_that_differ_from_their_mirror_images_are_noticed(
    draw: Draw, labels: tuple[str, ...], count: int
) -> None:
    """Left and right, pairs of letters, the alphabet, and words."""
    assert result(*images(draw, labels, count)).answer == "asymmetric"


def test_digits_are_noticed() -> None:
    """Scikit-learn's digits, whose mirror images are no digits or others."""
    digits = load_digits()
    pixels = np.kron(digits.images[:400] * 15.9, np.ones((4, 4))).astype(np.uint8)
    found = result(np.repeat(pixels[..., None], 3, -1), digits.target[:400].astype(str).tolist())
    assert found.answer == "asymmetric"
    assert found.accuracy.low > 0.9
    assert found.mirrored.high < 0.5


@pytest.mark.parametrize("count", [60, 300])
def test_symmetric_classes_are_found_symmetric(count: int) -> None:
    """Shapes seen from above, of which every mirror image could be another image."""
    assert result(*images(_blob, ("1", "3", "6"), count)).answer == "symmetric"


def test_the_other_class_and_the_interval_are_evidence() -> None:
    """The mirror images of arrows to the left are taken for arrows to the right."""
    found = result(*images(_arrow, CLASSES, 120))
    by_label = {CLASSES[each.label]: each for each in found.classes}
    assert set(by_label) == set(CLASSES)
    assert CLASSES[by_label["left"].other] == "right"
    assert by_label["left"].as_other.low > 0.8
    assert by_label["left"].originals > 0.9


def test_two_classes_among_many_are_enough() -> None:
    """A pair of arrows among six classes of flowers makes the data asymmetric."""
    flowers, names = images(_blob, ("1", "2", "3", "4", "6", "8"), 180)
    arrows, more = images(_arrow, CLASSES, 60)
    found = result(np.concatenate([flowers, arrows]), names + more)
    assert found.answer == "asymmetric"


@pytest.mark.parametrize(
    "case", ["too few", "noise", "blank", "labels at random", "few of a class among many"]
)
def test_what_cannot_be_known_is_unknown(case: str) -> None:
    """No evidence is not taken for symmetry."""
    generator = np.random.default_rng(0)
    pixels, names = images(_arrow, CLASSES, 80)
    if case == "too few":
        pixels, names = pixels[: FEWEST - 1], names[: FEWEST - 1]
    elif case == "noise":
        pixels = np.asarray(generator.integers(0, 256, pixels.shape), np.uint8)
    elif case == "blank":
        pixels = np.full_like(pixels, 90)
    elif case == "labels at random":
        names = generator.permutation(names).tolist()
    else:
        flowers, others = images(_blob, ("1", "3", "6"), 120)
        pixels, names = np.concatenate([flowers, pixels[:24]]), others + names[:24]
    assert result(pixels, names).answer != "symmetric"
    assert case == "few of a class among many" or result(pixels, names).answer == "unknown"


def test_images_without_labels_are_told_from_their_mirror_images_or_not() -> None:
    """Text is; flowers are not."""
    text, names = images(_text, tuple("BCDEFGJKLNPQRS"), 200)
    assert result(text, ["" for _ in names]).answer == "asymmetric"
    flowers, names = images(_blob, ("1", "3", "6"), 200)
    assert result(flowers, ["" for _ in names]).answer == "symmetric"


def test_copies_are_never_on_both_sides_of_a_fold() -> None:
    """Images without structure, ten copies each, do not look recognisable."""
    generator = np.random.default_rng(1)
    noise = generator.integers(0, 256, (10, SIDE, SIDE, 3)).astype(np.uint8)
    units = np.repeat(np.arange(10), 10)
    found = measured(noise[units], units % 2, units)
    assert found.answer == "unknown"
    assert found.accuracy.value < 0.8


def drawn(setting: MirrorSetting, *, symmetric: bool, seed: int) -> Measured:
    """Measure a made data set."""
    generator = np.random.default_rng(seed)
    return measured(*mirrored_data(generator, setting, symmetric=symmetric))


@pytest.mark.parametrize(
    ("groups", "size"), [((1,) * 60, 1), ((1,) * 4, 12), ((2,) * 4, 8), ((3,) * 4, 8)]
)
def test_what_few_images_or_groups_have_in_common_is_no_asymmetry(
    groups: tuple[int, ...], size: int
) -> None:
    """Each group of symmetric classes happens to face one way; a class is one to three of them."""
    setting = MirrorSetting("", groups, size)
    answers = [drawn(setting, symmetric=True, seed=seed).answer for seed in range(3)]
    assert "asymmetric" not in answers
    assert max(groups) > 1 or set(answers) == {"unknown"}


def test_few_groups_that_face_one_way_may_do_so_by_chance() -> None:
    """Twelve groups of four classes: eight coin tosses; with 24 it is no chance any more."""
    few, more = MirrorSetting("", (3,) * 4, 6), MirrorSetting("", (6,) * 4, 3)
    assert {drawn(few, symmetric=False, seed=seed).answer for seed in range(3)} == {"unknown"}
    assert {drawn(more, symmetric=False, seed=seed).answer for seed in range(3)} == {"asymmetric"}


def test_an_asymmetry_is_noticed_beside_classes_of_one_image() -> None:
    """The single ones are left out; 20 groups of each other class are enough."""
    setting = MirrorSetting("", (20, 20, *(1,) * 15), 2)
    found = drawn(setting, symmetric=False, seed=0)
    assert (found.answer, found.images, found.left_out) == ("asymmetric", 80, 30)


# -- from the files to the settings --------------------------------------------------------------


def folder(path: Path, draw: Draw, labels: tuple[str, ...], count: int) -> Path:
    """Write images into class folders."""
    for number, (pixels, name) in enumerate(zip(*images(draw, labels, count), strict=True)):
        file = path / f"class {name}" / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return path


def read(data: Path, **settings: Any) -> tuple[RunConfig, IngestedData]:
    """Return a config and what an ingestion finds."""
    config = validated({"data": {"path": str(data), **settings}})
    return config, ingest(config, data.parent / "work")


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
    assert "do not show the same classes, measured on" in data.notes[-1]
    assert "of these for 'class " in data.notes[-1]
    assert flips(config, data) is False
    assert resolve(config, data).data.mirror_symmetric is False
    facts = plan_facts(config, data).data
    assert not facts.mirror_symmetric
    assert "measured on" in facts.mirror
    inspected = inspect_data(config, arrows.parent / "work").result
    finding = next(each for each in inspected.findings if each.kind == "mirror_asymmetric")
    assert (finding.severity, set(finding.classes)) == ("note", {"class left", "class right"})


def test_flowers_are_mirrored(tmp_path: Path) -> None:
    """Measured to be symmetric, they are flipped; the answer is noted."""
    config, data = read(folder(tmp_path / "flowers", _blob, ("1", "3", "6"), 150))
    assert flips(config, data) is True
    assert data.notes[-1].startswith("mirrored images show the same classes, measured on")
    assert "of held-out images" in data.notes[-1]


def test_few_images_are_not_mirrored(tmp_path: Path) -> None:
    """That it is not known is said, with the setting that ends it."""
    config, data = read(folder(tmp_path / "few", _blob, ("1", "6"), 24))
    assert flips(config, data) is False
    assert "not known" in data.notes[-1]
    assert "set data.mirror_symmetric" in data.notes[-1]
    assert resolve(config, data).data.mirror_symmetric is None


def test_classes_of_one_image_are_said_to_be_untestable(tmp_path: Path) -> None:
    """Not known is said with its reason, and nothing is mirrored."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (30, SIDE, SIDE, 3)).astype(np.uint8)
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / f"{number}.png")
    frame = pd.DataFrame({"path": [f"{number}.png" for number in range(30)]})
    frame["label"] = [f"class {number}" for number in range(30)]
    rows = frame.assign(sha256=frame["path"], pixels="", group="", width=32, height=32)
    files = symmetry.Files(tmp_path, PixelMapping())
    found = symmetry.measured_symmetry(rows, files, tmp_path / "work")
    assert found.answer == "unknown"
    assert "30 of 30 training images are the only image or group of their class" in found.note


@pytest.mark.parametrize("where", ["data", "options", "augmentation"])
def test_settings_count_but_a_contradiction_is_said(arrows: Path, where: str) -> None:
    """Whoever mirrors arrows gets mirrored arrows, and a warning with the evidence."""
    settings: dict[str, Any] = {"data": {"path": str(arrows)}}
    if where == "data":
        settings["data"]["mirror_symmetric"] = True
    elif where == "options":
        settings["data"]["options"] = {"mirror_symmetric": True}
    else:
        settings["augmentation"] = {"name": "light", "horizontal_flip": True}
    config = validated(settings)
    data = ingest(config, arrows.parent / "work")
    assert flips(config, data) is True
    assert " is true, but mirrored images do not show the same classes" in data.notes[-1]
    inspected = inspect_data(config, arrows.parent / "work").result
    finding = next(each for each in inspected.findings if each.kind == "mirror_asymmetric")
    assert finding.severity == "warning"


def test_a_setting_that_mirrors_is_no_setting_of_an_earlier_ingestion(arrows: Path) -> None:
    """What was remembered without it does not take its warning away, and the other way round."""
    path = str(arrows)
    plain = validated({"data": {"path": path}})
    for mirroring in (
        {"augmentation": {"name": "light", "horizontal_flip": True}},
        {"model": {"name": "vit", "test_time_flip": True}},
    ):
        config = validated({"data": {"path": path}, **mirroring})
        for each, contradicted in ((plain, False), (config, True), (plain, False)):
            data = ingest(each, arrows.parent / "work")
            assert data.mirror.is_contradicted is contradicted
            assert ("is true, but" in data.notes[-1]) is contradicted


def test_images_that_are_mirrored_without_knowing_are_said_to_be(tmp_path: Path) -> None:
    """A setting of the user counts; nothing claims that no image is mirrored."""
    path = str(folder(tmp_path / "few", _blob, ("1", "6"), 24))
    light = {"name": "light", "horizontal_flip": True}
    data = ingest(validated({"data": {"path": path}, "augmentation": light}), tmp_path / "work")
    assert "but augmentation.horizontal_flip is true, so they are used" in data.notes[-1]
    assert "so none are used" not in data.notes[-1]


def test_the_measurement_sees_training_images_alone_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run with the same training images does not open one again."""
    _, data = read(folder(tmp_path / "flowers", _blob, ("1", "3", "6"), 150))
    rows = pd.read_parquet(data.manifest_file)
    training = rows[rows["split"] == "train"]
    monkeypatch.setattr(symmetry, "root_image_bytes", lambda _root, path: pytest.fail(path))
    again = symmetry.measured_symmetry(
        training, symmetry.Files(data.root, PixelMapping()), tmp_path / "work"
    )
    assert again == data.mirror
    assert f"measured on {len(training)} training images" in again.note
