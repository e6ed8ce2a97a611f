"""The inspection of folders with planted faults: each is found where it is, and nowhere else."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFilter

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.inspection.findings import KINDS, Inspection, write_table
from patchline.pipeline.evaluation.inspection.inspecting import Inspected, inspect_data
from patchline.pipeline.evaluation.inspection.inspection_report import looks, write_page
from tests.conftest import write_photos

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


def srgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def other_profile() -> bytes:
    """Return a color profile that takes red for blue."""
    parts = srgb_profile().replace(b"rXYZ", b"....").replace(b"bXYZ", b"rXYZ")
    return parts.replace(b"....", b"bXYZ")


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


def test_planted_faults_are_found_where_they_are(tmp_path: Path) -> None:
    """Each fault is in the finding of its kind, which names exactly its files."""
    folder = garden(tmp_path / "garden", images=12)
    day = folder / "train/day"
    (folder / "train/dusk").mkdir()
    for name in ("notes.txt", "words.jpg"):
        (day / name).write_text("words")
    scene(901).save(day / "jpeg.png", "JPEG")
    (day / "cut.jpg").write_bytes((day / "jpeg.png").read_bytes()[:900])
    Image.open(day / "02.png").save(day / "nearly.jpg", quality=30)
    scene(907).save(day / "moving.webp", save_all=True, append_images=[scene(908)])
    for number, name in enumerate(("a.rf.0123456789abcdef.jpg", "a.rf.fedcba9876543210.jpg")):
        scene(909 + number).save(day / name)
    scene(911).save(day / "wide.png", icc_profile=other_profile())
    scene(912).save(day / "usual.png", icc_profile=srgb_profile())
    scene(913).save(day / "damaged.png", icc_profile=b"damaged")
    scene(914).save(day / "codes.avif", quality=100)
    codes = (day / "codes.avif").read_bytes()  # sRGB's primaries are 1, Display P3's 12
    (day / "codes.avif").write_bytes(codes.replace(b"colrnclx\0\1", b"colrnclx\0\x0c"))
    scene(915).save(day / "stereo.jpg", "MPO", save_all=True, append_images=[scene(916)])
    for name, image in (
        ("dark.png", scene(905).point(lambda value: value // 8)),
        ("ink.jpg", scene(902).convert("CMYK")),
        ("large.png", scene(903, 8 * SIDE)),
        ("long.png", scene(904, 4 * SIDE).crop((0, 0, 4 * SIDE, SIDE // 2))),
        ("copy.bmp", Image.open(day / "03.png")),
        ("blurred.png", scene(906).filter(ImageFilter.GaussianBlur(4))),
        ("blank.png", Image.new("RGB", (SIDE, SIDE), (0, 90, 0))),
    ):
        image.save(day / name)
    found = inspected(folder).result.findings
    assert {each.kind: {Path(file).name for file in each.files} for each in found} == {
        "foreign": {"notes.txt"}, "unreadable": {"words.jpg"}, "truncated": {"cut.jpg"},
        "wrong_extension": {"jpeg.png"}, "unusual_mode": {"ink.jpg"},
        "size_outlier": {"large.png", "long.png"}, "exact_duplicate": {"03.png", "copy.bmp"},
        "near_duplicate": {"02.png", "nearly.jpg"}, "dark": {"dark.png"},
        "blurred": {"blurred.png"}, "blank": {"blank.png"}, "empty_class": set(),
        "unread_frames": {"moving.webp", "stereo.jpg"}, "unreadable_profile": {"damaged.png"},
        "color_profile": {"wide.png", "codes.avif"},
        "augmented_copy": {"a.rf.0123456789abcdef.jpg", "a.rf.fedcba9876543210.jpg"},
    }  # fmt: skip
    assert all(each.count == (len(each.files) or 1) for each in found)
    assert all(each.action.endswith(".") for each in found)


def test_what_misleads_a_training_is_a_warning(tmp_path: Path) -> None:
    """A profile that only one class has, copies in two splits, many images without a label."""
    folder = garden(tmp_path / "garden", images=12)
    for file in folder.rglob("day/*.png"):
        Image.open(file).save(file, icc_profile=other_profile())
    for part, mark in (("train", "0" * 16), ("test", "1" * 16)):
        (folder / f"{part}/night/00.png").rename(folder / f"{part}/night/a.rf.{mark}.png")
    for number in range(8):
        scene(900 + number).save(folder / f"train/{number}.png")
    found = {each.kind: each for each in inspected(folder).result.findings}
    assert {found[kind].severity for kind in found} == {"warning"}
    assert "day (" in found["color_profile"].action
    assert "2 of them with a copy in another split" in found["augmented_copy"].summary
    assert "8 of 80 images (10%)" in found["foreign"].summary


def test_uneven_classes_are_named(tmp_path: Path) -> None:
    """A class with a tenth of another's images, and one with few, are warnings."""
    folder = garden(tmp_path / "garden", images=1)
    for number in range(31):
        scene(900 + number, 32).save(folder / f"train/day/more{number}.png")
    found = {finding.kind: finding for finding in inspected(folder).result.findings}
    for kind in ("imbalance", "small_class"):
        assert (found[kind].classes, found[kind].severity) == (("night",), "warning")


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


@pytest.mark.parametrize("readable", [2, 0])
def test_class_that_is_too_small_to_split_is_an_error(tmp_path: Path, readable: int) -> None:
    """Where a run could not split a class, the inspection says so and still counts the rest."""
    folder = write_photos(tmp_path / "photos", images=12)
    for number in range(readable, 12):
        (folder / f"down/{number:03d}.png").write_text("words")
    found = inspected(folder)
    [finding] = [each for each in found.result.findings if each.kind == "small_class"]
    assert (finding.severity, finding.classes) == ("error", ("down",))
    assert sum(found.result.splits.values()) == found.result.images == 24 + readable
    assert any(note.startswith("a run would stop: Class 'down'") for note in found.result.notes)
    write_page(found, tmp_path / "page.html")


def test_odd_names_survive_page_and_table(tmp_path: Path) -> None:
    """Spaces, line ends, dashes, markup, emoji and bytes that are not UTF-8 do no harm."""
    folder = garden(tmp_path / "garden")
    names = ["a b.png", "line\nend.png", "-dash.png", "<b>&.png", "rose \N{ROSE}.png", 'q",x.png']
    for number, name in enumerate(names):
        scene(900 + number).point(lambda value: value // 8).save(folder / "train/day" / name)
    (folder / "train/day/bad\udcff.png").write_text("words")
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
    assert not re.search(r"(?:src|href)=\"(?!data:|#)|<script|<link|url\(|@import", text)


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
        *("augmented_copy", "color_profile", "unread_frames", "unreadable_profile"),
    ) == KINDS
    assert {"images", "classes", "splits", "sizes", "findings"} <= set(Inspection.model_fields)


def test_folder_without_a_readable_image_is_reported(tmp_path: Path) -> None:
    """Where nothing can be read, the files are named all the same, on the page too."""
    for label in ("day", "night"):
        (tmp_path / "garden" / label).mkdir(parents=True)
        (tmp_path / "garden" / label / "odd.jpg").write_text("words")
    found = inspected(tmp_path / "garden")
    [finding] = found.result.findings
    assert (found.result.images, finding.count) == (0, 2)
    write_page(found, tmp_path / "page.html")
    assert looks(found.result) == ["No image can be read"]
