"""The inspection of folders with planted faults: each is found where it is, and nowhere else."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from patchline.pipeline.config import RunConfig
from patchline.pipeline.inspection.finding import KINDS, Inspection
from patchline.pipeline.inspection.findings_table import write_table
from patchline.pipeline.inspection.inspecting import Inspected, inspect_data
from patchline.pipeline.inspection.page import write_page
from tests.conftest import draw_photo, write_photos

Plant = Callable[[Path], None]
SIDE = 64


@functools.cache
def scene(number: int, side: int = SIDE) -> Image.Image:
    """Return an image of overlapping discs with a little noise, unlike that of any other number."""
    generator = np.random.default_rng(number)
    rows, columns = np.mgrid[0:side, 0:side] / side
    pixels = np.ones((side, side, 3)) * generator.uniform(60, 200, 3)
    for _ in range(12):
        top, left, radius = generator.uniform(0, 1, 3)
        disc = (rows - top) ** 2 + (columns - left) ** 2 < (0.05 + 0.2 * radius) ** 2
        pixels[disc] = generator.uniform(0, 255, 3)
    pixels += generator.normal(0, 6, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def garden(folder: Path, images: int = 4) -> Path:
    """Write a folder without a fault: two classes of different images in three splits."""
    for place, (part, label) in enumerate(
        (part, label) for part in ("train", "val", "test") for label in ("day", "night")
    ):
        (folder / part / label).mkdir(parents=True)
        for number in range(images):
            scene(100 * place + number).save(folder / part / label / f"{number:02d}.png")
    return folder


def inspected(folder: Path, **data: object) -> Inspected:
    """Return what the inspection of a folder found."""
    config = RunConfig.model_validate(
        {"data": {"source": "image_folder", "path": str(folder), **data}}
    )
    return inspect_data(config, folder.parent / "work")


def _imbalance(folder: Path) -> None:
    for number in range(110):
        Image.fromarray(draw_photo(number % 4, number, 16)).save(
            folder / f"train/day/more{number}.png"
        )


def _small_class(folder: Path) -> None:
    for part in ("train", "val", "test"):
        (folder / part / "dusk").mkdir()
        scene(900 + len(part)).save(folder / part / "dusk/odd.png")


def _plant_faults(folder: Path) -> dict[str, set[str]]:
    """Put faults of many kinds into a folder, and return the files of each kind."""
    (folder / "notes.txt").write_text("words")
    (folder / "words.jpg").write_text("words")
    scene(900).save(folder / "cut.jpg")
    data = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    scene(901).save(folder / "jpeg.png", "JPEG")
    scene(902).convert("CMYK").save(folder / "ink.jpg")
    scene(903, 8 * SIDE).save(folder / "large.png")
    scene(904, 4 * SIDE).crop((0, 0, 4 * SIDE, SIDE // 2)).save(folder / "long.png")
    Image.open(folder / "03.png").save(folder / "copy.bmp")
    Image.open(folder / "02.png").save(folder / "nearly.jpg", quality=30)
    _dark(folder / "dark.png")
    scene(906).filter(ImageFilter.GaussianBlur(4)).save(folder / "blurred.png")
    Image.new("RGB", (SIDE, SIDE), (0, 90, 0)).save(folder / "blank.png")
    return {
        "foreign": {"notes.txt"},
        "unreadable": {"words.jpg"},
        "truncated": {"cut.jpg"},
        "wrong_extension": {"jpeg.png"},
        "unusual_mode": {"ink.jpg"},
        "size_outlier": {"large.png", "long.png"},
        "exact_duplicate": {"03.png", "copy.bmp"},
        "near_duplicate": {"02.png", "nearly.jpg"},
        "dark": {"dark.png"},
        "blurred": {"blurred.png"},
        "blank": {"blank.png"},
    }


def _dark(file: Path) -> None:
    scene(905).point(lambda value: value // 8).save(file)


def test_planted_faults_are_found_where_they_are(tmp_path: Path) -> None:
    """Each fault is in the finding of its kind, which names exactly its files."""
    folder = garden(tmp_path / "garden", images=12)
    planted = _plant_faults(folder / "train/day")
    expected = {kind: {f"train/day/{file}" for file in files} for kind, files in planted.items()}
    (folder / "train/dusk").mkdir()
    found = inspected(folder).result.findings
    assert {each.kind: set(each.files) for each in found} == {**expected, "empty_class": set()}
    assert all(each.count == (len(each.files) or 1) for each in found)
    assert len(found) == len(expected) + 1
    assert all(each.action.endswith(".") for each in found)


def test_good_folder_has_no_findings(tmp_path: Path) -> None:
    """A folder without a fault has counts, sizes and splits, and nothing to complain about."""
    result = inspected(garden(tmp_path / "garden", images=12)).result
    assert result.findings == ()
    assert [note.partition(" is ")[0] for note in result.notes] == [
        "whether mirrored images show the same classes"
    ]
    assert result.images == result.files == 72
    assert result.classes == {"day": 36, "night": 36}
    assert result.splits == {"train": 24, "validation": 24, "test": 24}
    assert result.sizes is not None
    assert (result.sizes.min, result.sizes.median, result.sizes.max) == (SIDE, SIDE, SIDE)


@pytest.mark.parametrize(
    ("plant", "kind", "classes"),
    [(_imbalance, "imbalance", ("night",)), (_small_class, "small_class", ("dusk",))],
)
def test_uneven_classes_are_named(
    tmp_path: Path, plant: Plant, kind: str, classes: tuple[str, ...]
) -> None:
    """A class with a tenth of another's images, and one with few, are warnings."""
    folder = garden(tmp_path / "garden")
    plant(folder)
    found = {finding.kind: finding for finding in inspected(folder).result.findings}
    assert found[kind].classes == classes  # type: ignore[index]
    assert found[kind].severity == "warning"  # type: ignore[index]


def test_copies_in_two_given_splits_are_an_error(tmp_path: Path) -> None:
    """Exact copies across given splits stop a run; the copy outside the test split can go."""
    folder = garden(tmp_path / "garden")
    shutil.copy(folder / "train/day/03.png", folder / "test/day/odd.png")
    found = {finding.kind: finding for finding in inspected(folder).result.findings}
    assert set(found) == {"leakage", "exact_duplicate"}
    assert found["leakage"].severity == "error"
    assert set(found["leakage"].files) == {"train/day/03.png", "test/day/odd.png"}
    assert found["leakage"].exclude == found["exact_duplicate"].exclude == ("train/day/03.png",)
    assert "--data.accept leakage" in found["leakage"].action


def test_mirror_image_in_another_split_and_class_is_a_warning(tmp_path: Path) -> None:
    """A near duplicate across splits with another label leaks and conflicts; no run stops."""
    folder = garden(tmp_path / "garden")
    mirrored = Image.open(folder / "train/day/03.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    mirrored.save(folder / "test/night/odd.png")
    result = inspected(folder).result
    found = {finding.kind: finding for finding in result.findings}
    assert set(found) == {"near_duplicate", "leakage", "label_conflict"}
    assert found["leakage"].severity == found["label_conflict"].severity == "warning"
    for finding in result.findings:
        assert set(finding.files) == {"train/day/03.png", "test/night/odd.png"}


def test_class_that_is_too_small_to_split_is_an_error(tmp_path: Path) -> None:
    """Where a run could not split a class, the inspection says so and still counts the rest."""
    folder = write_photos(tmp_path / "photos", images=12)
    for number in range(2, 12):
        (folder / f"down/{number:03d}.png").unlink()
    result = inspected(folder).result
    [finding] = [finding for finding in result.findings if finding.kind == "small_class"]
    assert finding.severity == "error"
    assert set(finding.files) == {"down/000.png", "down/001.png"}
    assert result.splits == {"unassigned": 26}


def test_folder_without_a_readable_image_is_reported(tmp_path: Path) -> None:
    """Where nothing can be read, the files are named all the same, on the page too."""
    for label in ("day", "night"):
        (tmp_path / "garden" / label).mkdir(parents=True)
        (tmp_path / "garden" / label / "odd.jpg").write_text("words")
    found = inspected(tmp_path / "garden")
    [finding] = found.result.findings
    assert finding.files == ("day/odd.jpg", "night/odd.jpg")
    assert found.result.images == 0
    write_page(found, tmp_path / "page.html")


def test_archive_is_inspected_without_unpacking(tmp_path: Path) -> None:
    """The images of a zip file are measured and drawn in place."""
    folder = garden(tmp_path / "garden")
    _dark(folder / "train/day/odd.png")
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", folder)
    found = inspect_data(
        RunConfig.model_validate({"data": {"source": "archive", "path": archive}}),
        tmp_path / "work",
    )
    assert [finding.kind for finding in found.result.findings] == ["dark"]
    write_page(found, tmp_path / "page.html")
    assert "data:image/jpeg" in (tmp_path / "page.html").read_text("utf-8")


def test_odd_names_survive_page_and_table(tmp_path: Path) -> None:
    """Spaces, line ends, dashes, markup, emoji and bytes that are not UTF-8 do no harm."""
    folder = garden(tmp_path / "garden")
    names = ["a b.png", "line\nend.png", "-dash.png", "<b>&.png", "rose \N{ROSE}.png", 'q",x.png']
    for number, name in enumerate(names):
        scene(900 + number).point(lambda value: value // 8).save(folder / "train/day" / name)
    with open(os.fsencode(folder / "train/day") + b"/bad\xff.png", "wb") as opened:  # noqa: PTH123
        opened.write(b"x")
    found = inspected(folder)
    kinds = {finding.kind: finding for finding in found.result.findings}
    assert {f"train/day/{name}" for name in names} == set(kinds["dark"].files)
    assert kinds["unreadable"].count == 1
    page, table = tmp_path / "page.html", tmp_path / "findings.csv"
    write_page(found, page)
    write_table(found.result, found.manifest, table)
    text = page.read_text("utf-8")
    assert "<b>&.png" not in text
    assert "&lt;b&gt;&amp;.png" in text
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert not re.search(r"<script|<link|url\(|@import", text)
    answers = table.read_text("utf-8").replace(",dark,note,,", ",dark,note,yes,")
    table.write_text(answers, encoding="utf-8")
    rest = inspected(folder, exclude=str(table)).result
    assert rest.images == found.result.images - len(names)
    assert [finding.kind for finding in rest.findings] == ["unreadable"]


def test_the_kinds_are_those_that_scripts_rely_on() -> None:
    """The names of the kinds and the keys of the result never change."""
    assert (
        *("foreign", "unreadable", "truncated", "wrong_extension", "unusual_mode"),
        *("size_outlier", "exact_duplicate", "near_duplicate", "leakage", "label_conflict"),
        *("label_error", "imbalance", "small_class", "empty_class", "dark", "blurred", "blank"),
        *("contradictory_rows", "missing_file", "refused_member"),
        *("similar_classes", "suspicious_class", "suspicious_labels"),
        *("value_range", "bands", "mirror_asymmetric"),
        *("no_label", "frequent_label", "implied_label", "rare_label_set"),
    ) == KINDS
    assert {"images", "classes", "splits", "sizes", "findings"} <= set(Inspection.model_fields)
