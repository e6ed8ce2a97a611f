"""The stages before training on real folders: what they find, fill in, and refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validated
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
    return validated({"data": {"source": "image_folder", "path": path, **settings}})


def ingested(folder: Path, **settings: Any) -> IngestedData:
    """Return what the ingestion says about a folder."""
    return ingest(config_of(folder, **settings), folder.parent / "work")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> IngestedData:
    """Return the built-in digits."""
    return ingest(validated({}), tmp_path_factory.mktemp("digits"))


def test_folder_is_described_in_numbers(photos: Path) -> None:
    """Classes, counts, size and fingerprint of a good folder are all there."""
    data = ingested(photos)
    assert data.name == "photos"
    assert data.classes == ("across", "down", "rising")
    assert data.class_counts == {"across": 20, "down": 20, "rising": 20}
    assert sum(data.counts.values()) == 60
    assert min(data.counts.values()) > 0
    assert data.median_side == 32
    assert not data.greyscale
    manifest = manifests.load(data.manifest_file)
    assert len(manifest) == 60
    assert manifests.fingerprint(manifest) == data.fingerprint
    example = Path(data.example_image).relative_to(photos).as_posix()
    assert manifest.set_index("path").loc[example, "split"] == "test"


def test_same_folder_elsewhere_is_the_same_data(photos: Path, tmp_path: Path) -> None:
    """A copy of the folder has the same fingerprint and the same splits."""
    moved = tmp_path / "other" / "photos"
    shutil.copytree(photos, moved)
    first, second = ingested(photos), ingested(moved)
    assert first.fingerprint == second.fingerprint
    assert first.counts == second.counts


def _empty(folder: Path) -> None:
    folder.mkdir()


def _is_a_file(folder: Path) -> None:
    folder.write_text("no folder")


def _no_class_folder(folder: Path) -> None:
    folder.mkdir()
    Image.fromarray(draw_photo(0, 0)).save(folder / "loose.png")


def _one_class(folder: Path) -> None:
    write_photos(folder, classes=1, images=5)


def _unreadable_class(folder: Path) -> None:
    write_photos(folder, classes=2, images=5)
    (folder / "broken").mkdir()
    (folder / "broken" / "a.png").write_bytes((folder / "down/000.png").read_bytes()[:300])


def _one_folder_around_the_classes(folder: Path) -> None:
    write_photos(folder / "flowers", classes=2, images=5)


def _one_class_that_can_be_read(folder: Path) -> None:
    write_photos(folder, classes=1, images=5)
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("hello")


def _too_few_images(folder: Path) -> None:
    write_photos(folder, classes=2, images=9)
    for file in sorted((folder / "down").iterdir())[2:]:
        file.unlink()


def _untrained_class(folder: Path) -> None:
    write_photos(folder / "train", classes=2, images=6)
    write_photos(folder / "test", classes=3, images=2)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda _: None, ["There is no folder", "Check the path"]),
        (_empty, ["has no class folder", "Put the images of each class"]),
        (_is_a_file, ["is not a folder", "Pass the folder", "an archive (.zip", "a table (.csv"]),
        (_no_class_folder, ["has no class folder", "Put the images of each class"]),
        (_one_class, ["only one class", "'across'", "at least two folders"]),
        (_unreadable_class, ["'broken'", "broken/a.png", "ends too early", "Repair"]),
        (_one_folder_around_the_classes, ["only one class", "(across, down)", "given/flowers"]),
        (_one_class_that_can_be_read, ["only one class", "'across'", "at least two folders"]),
        (_too_few_images, ["'down'", "2 usable images", "3 splits", "Add images"]),
        (_untrained_class, ["'rising'", "test", "none to train on", "Add some"]),
    ],
)
def test_folder_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, make: Any, named: list[str]
) -> None:
    """What is wrong with a folder is said in one line that names the value and the remedy."""
    folder = tmp_path / "given"
    make(folder)
    with pytest.raises(DataError) as raised:
        ingested(folder, accept=["leakage"])
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    for part in named:
        assert part in sentence
    assert not (tmp_path / "work" / "manifests").exists()


@pytest.mark.parametrize("make", [lambda _: None, _empty, _no_class_folder, _one_class])
def test_wrong_path_is_answered_without_reading_images(tmp_path: Path, make: Any) -> None:
    """What the names of the files alone show to be wrong is refused before the scan."""
    folder = tmp_path / "given"
    make(folder)
    with pytest.raises(DataError, match=str(folder)):
        check_source(config_of(folder), tmp_path / "work")


def test_damaged_and_foreign_files_are_named_and_left_out(photos: Path) -> None:
    """Files that cannot be used are named with their reasons, and the others are used."""
    (photos / "down/cut.png").write_bytes((photos / "down/000.png").read_bytes()[:500])
    (photos / "down/empty.png").write_bytes(b"")
    (photos / "down/notes.txt").write_text("Taken in May.")
    (photos / "readme.txt").write_text("Three classes.")
    (photos / "down/.hidden").write_text("not looked at")
    data = ingested(photos)
    notes = "\n".join(data.notes)
    assert "1 image is incomplete: its file ends too early and was left out: down/cut.png" in notes
    assert "down/empty.png (the file is empty)" in notes
    assert "down/notes.txt (not an image)" in notes
    assert "readme.txt (is not in a class folder)" in notes
    assert ".hidden" not in notes
    assert data.class_counts == {"across": 20, "down": 20, "rising": 20}


@pytest.mark.parametrize(
    ("modes", "greyscale"),
    [({"L"}, True), ({"1"}, True), ({"I;16"}, True), ({"L", "RGB"}, False), ({"RGB"}, False)],
)
def test_greyscale_is_recognised(tmp_path: Path, modes: set[str], greyscale: bool) -> None:
    """Images are taken for greyscale only if every one is, and the channels follow."""
    folder = tmp_path / "grey"
    for label in range(2):
        (folder / str(label)).mkdir(parents=True)
        for variant in range(4):
            grey = draw_photo(label, variant)[:, :, 0]
            image = Image.fromarray(grey.astype(np.uint16) * 257) if "I;16" in modes else None
            mode = sorted(modes)[variant % len(modes)]
            image = image or Image.fromarray(grey).convert(mode)
            image.save(folder / str(label) / f"{variant}.png")
    config, data = config_of(folder), ingested(folder)
    assert data.greyscale is greyscale
    assert resolve(config, data).data.channels == (1 if greyscale else 3)
    asked = resolve(config_of(folder, channels=3), data)
    assert asked.data.channels == 3


@pytest.mark.parametrize(
    ("median_side", "size"),
    [(1, 8), (8, 8), (15, 8), (16, 16), (32, 32), (63, 32), (64, 64), (96, 96), (4000, 96)],
)
def test_default_image_size_does_not_enlarge(median_side: int, size: int) -> None:
    """The default size is the largest of the usual ones that most images reach."""
    assert default_image_size(median_side) == size


def test_settings_that_depend_on_the_data_are_filled_in(photos: Path) -> None:
    """Size, channels, name, path and patch size of the resolved config come from the images."""
    config = config_of(photos)
    resolved = resolve(config, ingested(photos))
    assert resolved.name == "photos"
    assert resolved.data.path == str(photos)
    assert (resolved.data.image_size, resolved.data.channels) == (32, 3)
    assert resolved.model.patch_embedding.settings["patch_size"] == 4
    assert resolved.model.settings["embed_dim"] == 96
    assert RunConfig.model_validate(resolved.model_dump(mode="json")) == resolved


def test_what_the_user_set_is_kept(photos: Path) -> None:
    """A size and a name that were given are not replaced by the data's own."""
    given = validated(
        {
            "name": "mine",
            "data": {"source": "image_folder", "path": str(photos), "image_size": 24},
        }
    )
    resolved = resolve(given, ingested(photos))
    assert (resolved.name, resolved.data.image_size) == ("mine", 24)


@pytest.mark.parametrize("embedding", ["conv", "linear"])
def test_patch_size_that_does_not_divide_the_image_is_refused(photos: Path, embedding: str) -> None:
    """A patch size that does not fit is refused with both sizes and the divisors."""
    config = validated(
        {
            "data": {"source": "image_folder", "path": str(photos)},
            "model": {"patch_embedding": {"name": embedding, "patch_size": 5}},
        }
    )
    with pytest.raises(ConfigError) as raised:
        resolve(config, ingested(photos))
    sentence = str(raised.value)
    assert "patch_size 5 does not divide the 32x32 image" in sentence
    assert "2, 4, 8, 16, 32" in sentence
    assert "data.image_size" in sentence


def test_digits_are_not_mirrored_but_photos_are(digits: IngestedData, photos: Path) -> None:
    """Mirroring is off for digits, and for a folder as set; else it depends on the images."""
    flip = "horizontal_flip"
    assert resolve(validated({}), digits).augmentation.settings[flip] is False
    for given in ({"mirror_symmetric": True}, {"options": {"mirror_symmetric": True}}):
        resolved = resolve(config_of(photos, **given), ingested(photos, **given))
        assert resolved.augmentation.settings[flip] is True
    both = {"mirror_symmetric": False, "options": {"mirror_symmetric": True}}
    resolved = resolve(config_of(photos, **both), ingested(photos, **both))
    assert resolved.augmentation.settings[flip] is False
    assert resolved.data.mirror_symmetric is False


def test_asking_for_mirrored_digits_is_respected(digits: IngestedData) -> None:
    """A setting of the user beats what the data say about mirroring."""
    asked = validated({"augmentation": {"name": "light", "horizontal_flip": True}})
    assert resolve(asked, digits).augmentation.settings["horizontal_flip"] is True


@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "valid", "testing")])
def test_given_split_folders_are_respected(tmp_path: Path, names: tuple[str, str, str]) -> None:
    """Folders for the splits decide which image is in which split, and nothing is carved."""
    folder = tmp_path / "given"
    for name, images in zip(names, (8, 3, 5), strict=True):
        write_photos(folder / name, classes=2, images=images)
    for part, variant in ((names[1], 50), (names[2], 60)):  # so that no image is in two splits
        for label, kind in enumerate(("across", "down")):
            for number, file in enumerate(sorted((folder / part / kind).iterdir())):
                Image.fromarray(draw_photo(label, variant + number)).save(file)
    data = ingested(folder)
    assert data.classes == ("across", "down")
    assert data.counts == {"train": 16, "validation": 6, "test": 10}
    assert all(note.startswith(("only ", "whether mirrored")) for note in data.notes)


def test_class_missing_from_a_split_folder_does_not_shift_the_labels(tmp_path: Path) -> None:
    """A class without validation images changes neither the classes nor anybody's label."""
    folder = tmp_path / "given"
    for part in ("train", "val", "test"):
        write_photos(folder / part, classes=3, images=4)
    shutil.rmtree(folder / "val" / "across")
    data = ingested(folder, accept=["leakage"])
    assert data.classes == ("across", "down", "rising")
    manifest = manifests.load(data.manifest_file)
    assert (manifest["label"] == manifest["path"].str.split("/").str[1]).all()
    validation = manifest[manifest["split"] == "validation"]
    assert set(validation["label"]) == {"down", "rising"}


def test_image_in_two_given_splits_stops_the_run_unless_accepted(tmp_path: Path) -> None:
    """An image that the source puts into train and test is an error, and a note if accepted."""
    folder = tmp_path / "given"
    write_photos(folder / "train", classes=2, images=8)
    write_photos(folder / "test", classes=2, images=1)
    with pytest.raises(DataError, match=r"2 images appear in more than .*--data\.accept leakage\."):
        ingested(folder)
    data = ingested(folder, accept=["leakage"])
    notes = [note for note in data.notes if "more than one split" in note]
    assert len(notes) == 1
    assert notes[0].startswith("2 images appear")
    assert "test/across/000.png" in notes[0]


def test_missing_test_folder_is_split_off_from_train(tmp_path: Path) -> None:
    """With folders for train and validation alone, a test split is split off; that is no remark."""
    folder = tmp_path / "given"
    write_photos(folder / "train", classes=2, images=30)
    write_photos(folder / "val", classes=2, images=5)
    data = ingested(folder, accept=["leakage"])
    assert data.counts["validation"] == 10
    assert data.counts["test"] > 0
    assert data.counts["train"] + data.counts["test"] == 60
    assert data.split_origin == "test split off from train"
    assert not any("split off" in note for note in data.notes)


def test_prepared_images_are_measured_on_the_training_split(photos: Path, tmp_path: Path) -> None:
    """The store has the resolved size, and mean and deviation are those of the training images."""
    config, data = config_of(photos), ingested(photos)
    resolved = resolve(config, data)
    prepared = prepare(resolved, data, tmp_path / "work")
    images = open_images(prepared.store)
    manifest = manifests.usable(manifests.load(data.manifest_file))
    training = images[np.flatnonzero(manifest["split"] == "train")] / 255
    assert images.shape == (60, 32, 32, 3)
    assert prepared.image.mean == pytest.approx(training.mean(axis=(0, 1, 2)), abs=2e-6)
    assert prepared.image.std == pytest.approx(training.std(axis=(0, 1, 2)), abs=2e-6)
    assert not prepared.reused
    assert prepare(resolved, data, tmp_path / "work").reused
