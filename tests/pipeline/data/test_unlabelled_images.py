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
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.ingested_data import IngestedData, UnlabelledImages
from patchline.pipeline.data.ingestion import ingest, prepare, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.opened_images import JoinedImages, open_stores
from patchline.pipeline.data.unlabelled_images import check_unlabelled
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.evaluation.inspection.inspecting import inspect_data
from tests.conftest import draw_photo, write_photos

LABELLED, FURTHER = 30, 6


def config_of(folder: Path, **settings: Any) -> RunConfig:
    """Return the config of a run with unlabelled images and a teacher."""
    data = {"path": str(folder / "photos"), "unlabelled": str(folder / "more"), **settings}
    return validate_config({"data": data, "training": {"teacher": "photos/1"}})


def ingested(folder: Path, **settings: Any) -> IngestedData:
    """Return what the ingestion says about a folder of photos and one of unlabelled ones."""
    return ingest(config_of(folder, **settings), folder / "work")


def unlabelled(data: IngestedData) -> tuple[UnlabelledImages, pd.DataFrame]:
    """Return the unlabelled images, and their usable rows."""
    assert data.unlabelled is not None
    return data.unlabelled, manifests.usable(manifests.load(data.unlabelled.manifest_file))


def path_of(folder: Path, split: str = "test") -> str:
    """Return the first labelled image of a split."""
    rows = manifests.usable(manifests.load(ingested(folder).manifest_file))
    return str(rows.loc[rows["split"] == split, "path"].iloc[0])


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a folder with labelled photos and others."""
    write_photos(tmp_path / "photos", images=LABELLED // 3)
    (tmp_path / "more").mkdir()
    for number in range(FURTHER):
        Image.fromarray(draw_photo(number % 3, 100 + number)).save(tmp_path / f"more/{number}.png")
    return tmp_path


def test_labelled_images_are_divided_as_without_unlabelled_ones(both: Path) -> None:
    """Version, classes and splits stay; the others are in a manifest and a split of their own."""
    alone, data = ingested(both, unlabelled=None), ingested(both)
    assert (data.fingerprint, data.class_counts) == (alone.fingerprint, alone.class_counts)
    assert data.counts == {**alone.counts, "unlabelled": FURTHER}
    assert data.training_images == alone.counts["train"] + FURTHER
    images, rows = unlabelled(data)
    assert (images.count, images.left_out) == (FURTHER, {})
    assert set(zip(rows["split"], rows["label"], strict=True)) == {("unlabelled", "")}
    assert f"{LABELLED + FURTHER} images" in data.findings()[0]


def test_copies_are_left_out_and_named_by_reason(both: Path) -> None:
    """A copy of a test image would be leakage; the label of a training image is known.

    An inspection names the former, as leakage that a run avoids.
    """
    for split in ("test", "validation", "train"):
        image = Image.open(both / "photos" / path_of(both, split))
        image.save(both / f"more/{split}.bmp")  # another file with the same pixels
    shutil.copy(both / "more/0.png", both / "more/twice.png")
    (both / "more/broken.png").write_bytes((both / "more/1.png").read_bytes()[:60])
    data = ingested(both)
    images, rows = unlabelled(data)
    assert set(rows["path"]) == {f"{number}.png" for number in range(FURTHER)}
    assert images.left_out == {
        "copies of validation or test images": 2,
        "copies of training images": 1,
        "copies of other unlabelled images": 1,
    }
    said = "\n".join(data.notes)
    for words in (
        "2 unlabelled images are copies of validation or test images, so training on them",
        "1 unlabelled image is a copy of a training image, whose label is known",
        "data.unlabelled: 1 image is incomplete",
        "near duplicates of validation or test images are among its images is not known",
    ):
        assert words in said
    found = inspect_data(config_of(both), both / "work").result
    assert found.unlabelled == FURTHER
    assert sum(found.splits.values()) == found.images == LABELLED
    leaks = [each for each in found.findings if each.kind == "leakage"]
    [leak] = [each for each in leaks if "data.unlabelled" in each.summary]
    assert (set(leak.files), leak.severity) == (
        {path_of(both, "test"), path_of(both, "validation")}, "note"
    )  # fmt: skip


def test_the_table_of_excluded_images_holds_for_unlabelled_ones(both: Path) -> None:
    """And for copies of labelled images that it names; a path of both means the labelled one."""
    path, table = path_of(both, "train"), both / "bad.csv"
    shutil.copy(both / "photos" / path, both / "more/copy.png")
    (both / "more" / path).parent.mkdir()
    (both / "more/5.png").rename(both / "more" / path)
    table.write_text(f"path,exclude\n{path},yes\n3.png,yes\nnone.png,yes\n")
    data = ingested(both, exclude=str(table))
    images, rows = unlabelled(data)
    assert images.left_out == {"copies of excluded images": 1}
    assert set(rows["path"]) == {path, *(f"{n}.png" for n in range(FURTHER - 1) if n != 3)}
    assert "data.unlabelled: 1 image was excluded by bad.csv" in data.notes
    assert "1 file of bad.csv is not in the data: none.png" in data.notes


def test_images_of_held_out_groups_are_left_out(both: Path) -> None:
    """A patient in the test split is not learned from through unlabelled images either."""
    pattern = r"(?P<group>\d+)\.png"
    held_out = manifests.usable(manifests.load(ingested(both, group_pattern=pattern).manifest_file))
    group = held_out.loc[held_out["split"] == "test", "group"].iloc[0]
    Image.fromarray(draw_photo(0, 500)).save(both / f"more/x{group}.png")
    data = ingested(both, group_pattern=pattern)
    assert f"x{group}.png" not in set(unlabelled(data)[1]["path"])
    assert any("is in a group of validation or test images" in note for note in data.notes)


def test_near_duplicates_of_held_out_images_are_left_out_if_asked(both: Path) -> None:
    """A brighter copy of a test image is found among the unlabelled ones."""
    pixels = np.asarray(Image.open(both / "photos" / path_of(both)).convert("RGB")).astype(int)
    Image.fromarray(np.clip(pixels + 3, 0, 255).astype(np.uint8)).save(both / "more/near.png")
    assert "near.png" in set(unlabelled(ingested(both))[1]["path"])
    images, rows = unlabelled(ingested(both, group_near_duplicates=True))
    assert "near.png" not in set(rows["path"])
    assert images.left_out["near duplicates of validation or test images"] >= 1


def test_without_a_teacher_nothing_labels_them(both: Path) -> None:
    """The remedy is named before an image is opened; pre-training needs no labels."""
    config = validate_config({"data": {"path": "photos", "unlabelled": "more"}})
    with pytest.raises(ConfigError, match=r"nothing labels its images.*Set it to a model"):
        check_unlabelled(config, both / "work")
    config = config_of(both).model_copy(update={"objective": config.objective})
    assert check_unlabelled(config, both / "work") == FURTHER
    encoder = {"objective": {"name": "mae"}, "data": {"path": "photos"}}
    with pytest.raises(ConfigError, match=r"objective.name mae uses no labels"):
        check_unlabelled(
            validate_config({**encoder, "training": {"teacher": "a/1"}}), both / "work"
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such folder or file"),
        ("nothing", r"more has no file\. Name a folder"),
        ("copies", "has no image left to train on .*a copy of a training image"),
    ],
)
def test_unusable_unlabelled_images_are_refused(
    both: Path, content: str | None, message: str
) -> None:
    """One sentence says what is wrong with the folder."""
    path = path_of(both, "train")
    shutil.rmtree(both / "more")
    if content:
        (both / "more").mkdir()
    if content == "copies":
        shutil.copy(both / "photos" / path, both / "more")
    with pytest.raises(DataError, match=message):
        ingested(both)


def test_stores_of_both_are_read_as_one(both: Path) -> None:
    """Rows of the second store follow those of the first, whatever asks for them."""
    data = ingested(both)
    prepared = prepare(resolve(config_of(both), data), data, both / "work")
    assert prepared.unlabelled is not None
    stores = [prepared.store, prepared.unlabelled]
    images = open_stores(stores)
    assert isinstance(images, JoinedImages)
    expected = np.concatenate([open_stores([store])[:] for store in stores])
    assert (len(images), images.shape) == (LABELLED + FURTHER, expected.shape)
    rows = np.array([LABELLED + 1, 3, LABELLED + FURTHER - 1, LABELLED - 1, LABELLED])
    for key in (rows, rows.tolist(), slice(LABELLED - 2, LABELLED + 2), LABELLED):
        assert np.array_equal(images[key], expected[key])
