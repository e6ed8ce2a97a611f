"""Images without labels: read beside the labelled ones, never mixed with those held out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingested_data import IngestedData, UnlabelledImages
from patchline.pipeline.data.ingestion import ingest, prepare, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.joined_images import JoinedImages, open_stores
from patchline.pipeline.data.unlabelled_images import check_unlabelled
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.inspection.inspecting import inspect_data
from tests.conftest import draw_photo, write_photos

LABELLED, FURTHER = 30, 6


def config_of(folder: Path, **settings: Any) -> RunConfig:
    """Return the config of a run with unlabelled images and a teacher."""
    data = {"path": str(folder / "photos"), "unlabelled": str(folder / "more"), **settings}
    return validated({"data": data, "training": {"teacher": "photos/1"}})


def ingested(folder: Path, **settings: Any) -> IngestedData:
    """Return what the ingestion says about a folder of photos and one of unlabelled ones."""
    return ingest(config_of(folder, **settings), folder / "work")


def unlabelled(data: IngestedData) -> tuple[UnlabelledImages, pd.DataFrame]:
    """Return the unlabelled images, and their usable rows."""
    assert data.unlabelled is not None
    return data.unlabelled, manifests.usable(manifests.load(data.unlabelled.manifest_file))


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a folder with labelled photos and others."""
    write_photos(tmp_path / "photos", images=LABELLED // 3)
    (tmp_path / "more").mkdir()
    for number in range(FURTHER):
        image = Image.fromarray(draw_photo(number % 3, 100 + number))
        image.save(tmp_path / "more" / f"{number}.png")
    return tmp_path


def test_labelled_images_are_divided_as_without_unlabelled_ones(both: Path) -> None:
    """Version, classes and splits stay; the others are in a manifest and a split of their own."""
    alone = ingested(both, unlabelled=None)
    data = ingested(both)
    assert (data.fingerprint, data.classes) == (alone.fingerprint, alone.classes)
    assert data.class_counts == alone.class_counts
    assert data.counts == {**alone.counts, "unlabelled": FURTHER}
    assert data.training_images == alone.counts["train"] + FURTHER
    images, rows = unlabelled(data)
    assert (images.count, images.left_out) == (FURTHER, {})
    assert set(rows["split"]) == {"unlabelled"}
    assert set(rows["label"]) == {""}
    assert f"{LABELLED + FURTHER} images" in data.findings()[0]


def test_copies_are_left_out_and_named_by_reason(both: Path) -> None:
    """A copy of a test image would be leakage; the label of a training image is known."""
    rows = manifests.usable(manifests.load(ingested(both).manifest_file))
    for split, name in (("test", "of test"), ("validation", "held out"), ("train", "known")):
        path = rows.loc[rows["split"] == split, "path"].iloc[0]
        image = Image.open(both / "photos" / path)
        image.save(both / "more" / f"{name}.bmp")  # another file with the same pixels
    shutil.copy(both / "more" / "0.png", both / "more" / "twice.png")
    (both / "more" / "broken.png").write_bytes((both / "more" / "1.png").read_bytes()[:60])
    data = ingested(both)
    images, rows = unlabelled(data)
    assert len(rows) == FURTHER
    assert not set(rows["path"]) & {"of test.bmp", "held out.bmp", "known.bmp", "twice.png"}
    assert images.left_out == {
        "copies of validation or test images": 2,
        "copies of training images": 1,
        "copies of other unlabelled images": 1,
    }
    said = "\n".join(data.notes)
    assert (
        "2 unlabelled images are copies of validation or test images, so training on them would be "
        "leakage, and were left out: held out.bmp, of test.bmp"
    ) in said
    assert (
        "1 unlabelled image is a copy of a training image, whose label is known, and was left out: "
        "known.bmp"
    ) in said
    assert "data.unlabelled: 1 image is incomplete" in said
    assert "near duplicates of validation or test images are among its images is not known" in said


def test_the_table_of_excluded_images_holds_for_unlabelled_ones(both: Path) -> None:
    """And for copies of labelled images that it names; a path of both means the labelled one."""
    rows = manifests.usable(manifests.load(ingested(both).manifest_file))
    path = rows.loc[rows["split"] == "train", "path"].iloc[0]
    shutil.copy(both / "photos" / path, both / "more" / "copy.png")
    (both / "more" / path).parent.mkdir()
    (both / "more" / "5.png").rename(both / "more" / path)
    table = both / "bad.csv"
    table.write_text(f"path,exclude\n{path},yes\n3.png,yes\nnone.png,yes\n")
    data = ingested(both, exclude=str(table))
    images, rows = unlabelled(data)
    assert images.left_out == {"copies of excluded images": 1}
    assert set(rows["path"]) == {path, *(f"{n}.png" for n in range(FURTHER - 1) if n != 3)}
    said = [note for note in data.notes if "bad.csv" in note or "excluded image" in note]
    assert said == [
        "1 image was excluded by bad.csv",
        "data.unlabelled: 1 image was excluded by bad.csv",
        "1 file of bad.csv is not in the data: none.png",
        "1 unlabelled image is a copy of an excluded image and was left out: copy.png",
    ]


def test_images_of_held_out_groups_are_left_out(both: Path) -> None:
    """A patient in the test split is not learned from through unlabelled images either."""
    pattern = r"(?P<group>\d+)\.png"
    held_out = manifests.usable(manifests.load(ingested(both, group_pattern=pattern).manifest_file))
    group = held_out.loc[held_out["split"] == "test", "group"].iloc[0]
    Image.fromarray(draw_photo(0, 500)).save(both / "more" / f"x{group}.png")
    data = ingested(both, group_pattern=pattern)
    _, rows = unlabelled(data)
    assert f"x{group}.png" not in set(rows["path"])
    assert "is in a group of validation or test images, so training on it would be" in "\n".join(
        data.notes
    )
    data = ingested(both, group_pattern=r"(across|down|rising)/")
    assert "finds no group in its paths" in "\n".join(data.notes)


def test_near_duplicates_of_held_out_images_are_left_out_if_asked(both: Path) -> None:
    """A brighter and cropped copy of a test image is found among the unlabelled ones."""
    rows = manifests.usable(manifests.load(ingested(both).manifest_file))
    path = rows.loc[rows["split"] == "test", "path"].iloc[0]
    pixels = np.asarray(Image.open(both / "photos" / path).convert("RGB")).astype(int)
    near = np.clip(pixels + 3, 0, 255).astype(np.uint8)
    Image.fromarray(near).save(both / "more" / "near.png")
    assert "near.png" in set(unlabelled(ingested(both))[1]["path"])
    data = ingested(both, group_near_duplicates=True)
    images, rows = unlabelled(data)
    assert "near.png" not in set(rows["path"])
    assert images.left_out["near duplicates of validation or test images"] >= 1
    assert not [note for note in data.notes if "unlabelled" in note and "not known" in note]


def test_without_a_teacher_nothing_labels_them(both: Path) -> None:
    """The remedy is named before an image is opened; pre-training needs no labels."""
    config = validated({"data": {"path": "photos", "unlabelled": "more"}})
    with pytest.raises(ConfigError, match=r"nothing labels its images.*Set it to a model"):
        check_unlabelled(config, both / "work")
    config = config_of(both).model_copy(update={"objective": config.objective})
    assert check_unlabelled(config, both / "work") == FURTHER
    encoder = {"objective": {"name": "mae"}, "data": {"path": "photos"}}
    with pytest.raises(ConfigError, match=r"objective.name mae uses no labels"):
        check_unlabelled(validated({**encoder, "training": {"teacher": "a/1"}}), both / "work")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such folder or file"),
        ("nothing", r"more has no file\. Name a folder"),
        ("copies", "has no image left to train on .*copies of training images"),
    ],
)
def test_unusable_unlabelled_images_are_refused(
    both: Path, content: str | None, message: str
) -> None:
    """One sentence says what is wrong with the folder."""
    shutil.rmtree(both / "more")
    if content:
        (both / "more").mkdir()
    if content == "copies":
        rows = manifests.usable(manifests.load(ingested(both, unlabelled=None).manifest_file))
        for path in rows.loc[rows["split"] == "train", "path"].iloc[:3]:
            shutil.copy(both / "photos" / path, both / "more" / Path(path).name)
    with pytest.raises(DataError, match=message):
        ingested(both)


def test_an_inspection_names_the_held_out_images_that_are_among_them(both: Path) -> None:
    """As leakage that a run avoids; the unlabelled images are counted apart."""
    rows = manifests.usable(manifests.load(ingested(both).manifest_file))
    path = rows.loc[rows["split"] == "test", "path"].iloc[0]
    shutil.copy(both / "photos" / path, both / "more" / "copy.png")
    found = inspect_data(config_of(both), both / "work").result
    assert found.unlabelled == FURTHER
    assert sum(found.splits.values()) == found.images == LABELLED
    leaks = [each for each in found.findings if each.kind == "leakage"]
    [leak] = [each for each in leaks if "data.unlabelled" in each.summary]
    assert leak.files == (path,)
    assert leak.severity == "note"
    assert "1 validation or test image is among the images of data.unlabelled" in leak.summary


def test_stores_of_both_are_read_as_one(both: Path) -> None:
    """Rows of the second store follow those of the first, whatever asks for them."""
    config = config_of(both)
    data = ingested(both)
    prepared = prepare(resolve(config, data), data, both / "work")
    assert prepared.unlabelled is not None
    first, second = (open_stores([store]) for store in (prepared.store, prepared.unlabelled))
    images = open_stores([prepared.store, prepared.unlabelled])
    assert isinstance(images, JoinedImages)
    assert len(images) == LABELLED + FURTHER
    assert images.shape[1:] == tuple(first.shape[1:])
    rows = np.array([LABELLED + 1, 3, LABELLED + FURTHER - 1, LABELLED - 1, LABELLED])
    expected = np.stack([second[1], first[3], second[FURTHER - 1], first[-1], second[0]])
    assert np.array_equal(images[rows], expected)
    assert np.array_equal(images[rows.tolist()], expected)
    around = np.arange(LABELLED - 2, LABELLED + 2)
    assert np.array_equal(images[around[0] : around[-1] + 1], images[around])
    assert np.array_equal(images[LABELLED], second[0])
