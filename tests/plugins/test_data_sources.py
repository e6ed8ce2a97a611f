"""The built-in data sources: what they list, and how they label it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from patchline.pipeline.errors import DataError
from patchline.plugin_api import ImageListing, ListedImage, SourceContext, Split
from patchline.plugins.data_sources import digits, image_folder


def _touch(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"a source opens nothing")
    return root


def _listed(path: Path | None, *, mirror_symmetric: bool | None = None) -> ImageListing:
    config = image_folder.ImageFolderConfig(mirror_symmetric=mirror_symmetric)
    context = SourceContext(path=None if path is None else str(path), work_dir=Path("work"))
    return image_folder.plugin.build(config, context).list_images()


def _by_path(root: Path) -> dict[str, tuple[str, Split | None]]:
    images = _listed(root).images
    found = {image.path: (image.label, image.split) for image in images}
    assert len(found) == len(images)
    return found


def test_labels_by_the_class_folder(tmp_path: Path) -> None:
    """Every file below a class folder has its name as label, however deep it lies."""
    root = _touch(tmp_path / "pets", "cat/1.jpg", "cat/indoor/old/2.png", "dog/1.jpg")
    assert _by_path(root) == {
        "cat/1.jpg": ("cat", None),
        "cat/indoor/old/2.png": ("cat", None),
        "dog/1.jpg": ("dog", None),
    }


def test_passes_over_hidden_files(tmp_path: Path) -> None:
    """Names that begin with a dot are not listed, files and folders, at any depth."""
    root = _touch(
        tmp_path,
        *("cat/1.jpg", "dog/1.jpg", ".DS_Store", "cat/.DS_Store", "cat/.cache/1.jpg"),
        *(".git/objects/1.jpg", "dog/in/._1.jpg"),
    )
    assert set(_by_path(root)) == {"cat/1.jpg", "dog/1.jpg"}


@pytest.mark.parametrize(
    ("folder", "split"),
    [
        ("validation", "validation"),
        ("val", "validation"),
        ("valid", "validation"),
        ("Val", "validation"),
        ("test", "test"),
        ("testing", "test"),
        ("TEST", "test"),
    ],
)
@pytest.mark.parametrize("train", ["train", "training", "Train"])
def test_reads_splits_from_their_folders(
    tmp_path: Path, train: str, folder: str, split: str
) -> None:
    """With a folder for training, the usual names of the splits are splits and not classes."""
    root = _touch(tmp_path, f"{train}/cat/1.jpg", f"{train}/dog/deep/1.jpg", f"{folder}/cat/2.jpg")
    assert _by_path(root) == {
        f"{train}/cat/1.jpg": ("cat", "train"),
        f"{train}/dog/deep/1.jpg": ("dog", "train"),
        f"{folder}/cat/2.jpg": ("cat", split),
    }


def test_needs_a_training_folder_to_see_splits(tmp_path: Path) -> None:
    """Without a folder for training, `test` is a class like any other."""
    root = _touch(tmp_path, "test/1.jpg", "control/1.jpg")
    assert _by_path(root) == {"test/1.jpg": ("test", None), "control/1.jpg": ("control", None)}


def test_lists_stray_files_without_a_label(tmp_path: Path) -> None:
    """A file that lies in no class folder is listed without label, not dropped in silence."""
    root = _touch(tmp_path, "cat/1.jpg", "dog/1.jpg", "readme.txt")
    assert _by_path(root)["readme.txt"] == ("", None)


def test_lists_what_lies_beside_the_splits_without_a_label(tmp_path: Path) -> None:
    """With splits, files and folders beside them are listed without label."""
    root = _touch(
        tmp_path,
        *("train/cat/1.jpg", "train/dog/1.jpg", "test/cat/1.jpg", "extra/cat/1.jpg", "readme.txt"),
    )
    found = _by_path(root)
    assert found["extra/cat/1.jpg"] == ("", None)
    assert found["readme.txt"] == ("", None)


def test_lists_files_between_split_and_class_without_a_label(tmp_path: Path) -> None:
    """A file in a split's folder, but in no class folder, is listed without label too."""
    root = _touch(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "train/stray.jpg")
    assert _by_path(root).get("train/stray.jpg") == ("", None)


def test_lists_in_the_same_order_every_time(tmp_path: Path) -> None:
    """The order is that of the names, not that in which the files were written."""
    names = ("dog/b.jpg", "cat/10.jpg", "cat/2.jpg", "dog/a.jpg")
    first = _listed(_touch(tmp_path / "one", *names)).images
    second = _listed(_touch(tmp_path / "two", *reversed(names))).images
    assert first == second


@pytest.mark.parametrize(
    ("folder", "name"),
    [("flowers", "flowers"), ("my flowers (new)", "my-flowers-new"), ("花", "images")],
)
def test_names_the_data_after_the_folder(tmp_path: Path, folder: str, name: str) -> None:
    """The folder's name, made fit for an experiment, is the name of the data."""
    assert _listed(_touch(tmp_path / folder, "cat/1.jpg")).name == name


def test_says_whether_mirrors_keep_the_class(tmp_path: Path) -> None:
    """The setting mirror_symmetric is handed on with the listing."""
    root = _touch(tmp_path, "cat/1.jpg")
    assert _listed(root).mirror_symmetric is None
    assert _listed(root, mirror_symmetric=False).mirror_symmetric is False


def test_refuses_what_is_no_folder_of_classes(tmp_path: Path) -> None:
    """A missing path, a file and a folder without classes are each refused in a sentence."""
    file = _touch(tmp_path, "one.jpg") / "one.jpg"
    for path, words in (
        (None, r"data\.path is missing"),
        (tmp_path / "nowhere", r"There is no folder .*nowhere"),
        (file, r"one\.jpg is not a folder"),
        (tmp_path, r"has no class folder"),
    ):
        with pytest.raises(DataError, match=words):
            _listed(path)
    packed = _touch(tmp_path / "packed", "a.tar")
    with pytest.raises(DataError, match=r"has no class folder .*, but 'a\.tar'\. To read"):
        _listed(packed)


def _digits(work_dir: Path) -> ImageListing:
    context = SourceContext(path=None, work_dir=work_dir)
    return digits.plugin.build(digits.DigitsConfig(), context).list_images()


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    """All 1797 digits are there, labelled, with their values scaled from 16 to 255."""
    listing, data = _digits(tmp_path), load_digits()
    assert len(listing.images) == 1797 == len(data.target)
    assert not listing.mirror_symmetric
    for listed, values, label in zip(listing.images, data.images, data.target, strict=True):
        assert listed == ListedImage(path=listed.path, label=str(label))
        pixels = np.asarray(Image.open(listing.root / listed.path))
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels, np.round(values * 255 / 16))


def test_digits_refuse_a_path(tmp_path: Path) -> None:
    """Whoever names a folder is not given the digits instead."""
    context = SourceContext(path="photos", work_dir=tmp_path)
    with pytest.raises(DataError, match=r"data\.path is photos, .* data\.source to image_folder"):
        digits.plugin.build(digits.DigitsConfig(), context)


def test_digits_are_written_once(tmp_path: Path) -> None:
    """A second listing is the same and writes no file again."""
    first = _digits(tmp_path)
    files = sorted(tmp_path.rglob("*.*"))
    written = [file.stat().st_mtime_ns for file in files]
    missing = files.pop(100)
    written.pop(100)
    missing.unlink()
    assert _digits(tmp_path).images == first.images
    assert [file.stat().st_mtime_ns for file in files] == written
    assert missing.exists()
    assert len(files) == 1796


def test_runs_that_begin_at_once_write_the_digits_together(tmp_path: Path) -> None:
    """Four that list the same new folder at the same moment all find every digit."""
    together = Barrier(4)

    def listed(_: int) -> ImageListing:
        together.wait()
        return _digits(tmp_path)

    with ThreadPoolExecutor(4) as pool:
        listings = list(pool.map(listed, range(4)))
    assert all(listing.images == listings[0].images for listing in listings)
    assert len(list(tmp_path.rglob("*.*"))) == 1797
