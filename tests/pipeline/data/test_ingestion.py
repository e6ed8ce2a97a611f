"""The stages before training on real folders: what they find, fill in, and refuse."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.image_size import default_image_size
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import check_source, ingest, prepare, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.errors import ConfigError, DataError
from tests.conftest import draw_photo, write_photos


def config_of(folder: Path | str | None, **settings: Any) -> RunConfig:
    """Return the config of a run on an image folder, with settings of the data beside it."""
    path = None if folder is None else str(folder)
    return validate_config({"data": {"source": "image_folder", "path": path, **settings}})


def ingested(folder: Path, **settings: Any) -> IngestedData:
    """Return what the ingestion says about a folder."""
    return ingest(config_of(folder, **settings), folder.parent / "work")


def test_folder_is_described_in_numbers(photos: Path) -> None:
    """Classes, counts, size and fingerprint of a good folder are all there."""
    data = ingested(photos)
    assert data.name == "photos"
    assert data.class_counts == {"across": 20, "down": 20, "rising": 20}
    assert sum(data.counts.values()) == 60
    assert min(data.counts.values()) > 0
    assert (data.median_side, data.greyscale) == (32, False)
    manifest = manifests.load(data.manifest_file).set_index("path")
    assert manifests.fingerprint(manifest.reset_index()) == data.fingerprint
    assert manifest.loc[Path(data.example_image).relative_to(photos).as_posix(), "split"] == "test"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (None, "There is no folder.*Check the path"),
        ("", r"is not a folder. Pass the folder .* an archive \(\.zip"),
        ("loose.png", "has no class folder.*Put the images of each class"),
        ("a/0-5.png", "only one class.*'a'.*at least two folders"),
        ("flowers/a/0-5.png flowers/b/0-5.png", r"only one class.*\(a, b\).*given/flowers"),
        ("a/0-5.png b/notes.txt", "only one class.*'a'.*at least two folders"),
        ("a/0-5.png b/0-5.png c/cut.png", "'c'.*c/cut.png.*ends too early.*Repair"),
        ("a/0-9.png b/0-2.png", "'b'.*2 usable images.*3 splits.*Add images"),
        ("train/a/0-6.png train/b/0-6.png test/c/0-2.png", "'c'.*test.*none to train on.*Add some"),
    ],
)
def test_folder_that_cannot_be_used_is_refused_in_a_sentence(files: str | None, named: str) -> None:
    """What is wrong with a folder is said in one line that names the value and the remedy.

    What the names of the files alone show to be wrong is refused before an image is read.
    """
    folder, numbers = Path("given"), itertools.count()
    if files == "":
        folder.write_text("no folder")
    for name in files.split() if files else ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        first, _, last = Path(name).stem.partition("-")
        for place in range(int(last or 1)):
            file = (folder / name).with_stem(f"{first}{place}" if last else first)
            Image.fromarray(draw_photo(0, next(numbers))).save(file, "PNG")
            if first in {"cut", "notes"}:
                file.write_bytes(file.read_bytes()[:300] if first == "cut" else b"hello")
    with pytest.raises(DataError, match=rf"^.*{named}.*\.$"):
        ingested(folder, accept=["leakage"])
    assert not Path("work/manifests").exists()
    if named.startswith(("There", "is not", "has no")):
        with pytest.raises(DataError, match=str(folder)):
            check_source(config_of(folder), Path("work"))


@pytest.mark.parametrize(
    ("modes", "greyscale"), [(("1", "L"), True), (("I;16",), True), (("L", "RGB"), False)]
)
def test_greyscale_is_recognised(modes: tuple[str, ...], greyscale: bool) -> None:
    """Images are taken for greyscale only if every one is, and the channels follow."""
    folder = Path("grey")
    for number in range(8):
        grey, mode = draw_photo(number % 2, number)[:, :, 0], modes[number // 2 % len(modes)]
        deep = Image.fromarray(grey.astype(np.uint16) * 257)
        image = deep if mode == "I;16" else Image.fromarray(grey).convert(mode)
        file = folder / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
    data = ingested(folder)
    assert data.greyscale is greyscale
    assert resolve(config_of(folder), data).data.channels == (1 if greyscale else 3)


def test_default_image_size_does_not_enlarge() -> None:
    """The default size is the largest of the usual ones that most images reach."""
    sides = (1, 15, 16, 63, 64, 96, 4000)
    assert [default_image_size(side) for side in sides] == [8, 8, 16, 32, 64, 96, 96]


def test_settings_that_depend_on_the_data_are_filled_in(photos: Path) -> None:
    """Size, channels, name, path and patch size come from the images, unless the user sets them."""
    data = ingested(photos)
    resolved = resolve(config_of(photos), data)
    assert (resolved.name, resolved.data.path) == ("photos", str(photos))
    assert (resolved.data.image_size, resolved.data.channels) == (32, 3)
    assert resolved.model.patch_embedding.settings["patch_size"] == 4
    assert resolved.model.settings["embed_dim"] == 96
    assert RunConfig.model_validate(resolved.model_dump(mode="json")) == resolved
    resolved = resolve(config_of(photos, image_size=24).model_copy(update={"name": "mine"}), data)
    assert (resolved.name, resolved.data.image_size) == ("mine", 24)
    size = {"patch_embedding": {"name": "conv", "patch_size": 5}}
    wrong = validate_config(
        {"data": {"source": "image_folder", "path": str(photos)}, "model": size}
    )
    words = "patch_size 5 does not divide the 32x32 image.*2, 4, 8, 16, 32.*data.image_size"
    with pytest.raises(ConfigError, match=words):
        resolve(wrong, data)


def test_photos_are_mirrored_as_set(photos: Path) -> None:
    """`data.mirror_symmetric` beats the options, and the augmentation's own setting beats both."""
    options, flip = {"mirror_symmetric": True}, {"name": "light", "horizontal_flip": True}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"data": {"options": options}}, True),
        ({"data": {"mirror_symmetric": False, "options": options}}, False),
        ({"data": {"mirror_symmetric": False}, "augmentation": flip}, True),
    ]
    for given, mirrored in cases:
        config = validate_config({**given, "data": {"path": str(photos), **given["data"]}})
        data = ingest(config, photos.parent / "work")
        assert resolve(config, data).augmentation.settings["horizontal_flip"] is mirrored


def test_class_missing_from_a_split_folder_does_not_shift_the_labels() -> None:
    """A class without validation images changes neither the classes nor anybody's label.

    The folders decide which image is in which split, and nothing is carved.
    """
    for part in ("train", "val", "test"):
        write_photos(Path("given") / part, classes=3, images=4)
    shutil.rmtree(Path("given/val/across"))
    data = ingested(Path("given"), accept=["leakage"])
    assert data.classes == ("across", "down", "rising")
    assert data.counts == {"train": 12, "validation": 8, "test": 12}
    manifest = manifests.load(data.manifest_file)
    assert (manifest["label"] == manifest["path"].str.split("/").str[1]).all()
    assert set(manifest.loc[manifest["split"] == "validation", "label"]) == {"down", "rising"}


def test_image_in_two_given_splits_stops_the_run_unless_accepted() -> None:
    """An image that the source puts into train and test is an error, and a note if accepted.

    A missing validation split is split off from train; that is no remark.
    """
    folder = Path("given")
    write_photos(folder / "train", classes=2, images=30)
    write_photos(folder / "test", classes=2, images=1)
    with pytest.raises(DataError, match=r"2 images appear in more than .*--data\.accept leakage\."):
        ingested(folder)
    data = ingested(folder, accept=["leakage"])
    [note] = [note for note in data.notes if "more than one split" in note]
    assert note.startswith("2 images appear")
    assert "test/across/000.png" in note
    assert (data.counts["test"], data.counts["train"] + data.counts["validation"]) == (2, 60)
    assert data.counts["validation"] > 0
    assert data.split_origin == "validation split off from train"
    assert not any("split off" in note for note in data.notes)


def test_prepared_images_are_measured_on_the_training_split(photos: Path) -> None:
    """The store has the resolved size, and mean and deviation are those of the training images."""
    data = ingested(photos)
    resolved = resolve(config_of(photos), data)
    prepared = prepare(resolved, data, Path("work"))
    images = open_images(prepared.store)
    manifest = manifests.usable(manifests.load(data.manifest_file))
    training = images[np.flatnonzero(manifest["split"] == "train")] / 255
    assert images.shape == (60, 32, 32, 3)
    assert prepared.image.mean == pytest.approx(training.mean(axis=(0, 1, 2)), abs=2e-6)
    assert prepared.image.std == pytest.approx(training.std(axis=(0, 1, 2)), abs=2e-6)
    assert prepare(resolved, data, Path("work")).reused
