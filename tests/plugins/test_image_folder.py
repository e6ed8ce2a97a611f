"""Folders of class folders: labels, splits, links, empty and closed folders, and names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.packaging.prediction.image_files import find_images
from patchline.plugin_api import ImageListing, ListedImage, SourceContext
from patchline.plugins.data_sources.image_folder import ImageFolder, ImageFolderConfig
from tests.plugins.listings import touched

RUN = "0123456789abcdef" * 2


def listing(root: Path | None, *, split_folders: bool | None = None) -> ImageListing:
    """Return what the source lists."""
    config = ImageFolderConfig(split_folders=split_folders)
    context = SourceContext(None if root is None else str(root), Path("work"))
    return ImageFolder(config, context).list_images()


def labels(root: Path, *, split_folders: bool | None = None) -> set[tuple[str, str | None]]:
    """Return each class with the split that its images have."""
    found = listing(root, split_folders=split_folders).images
    return {(image.label, image.split) for image in found}


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    """Linked class folders and linked folders inside belong to the data; a way back does not."""
    touched("elsewhere", "roses/1.png", "roses/deep/2.png", "more/3.png", "4.png")
    root = touched("data", "tulip/5.png")
    (root / "rose").symlink_to(tmp_path / "elsewhere/roses")
    (root / "tulip/more").symlink_to(tmp_path / "elsewhere/more")
    (root / "tulip/4.png").symlink_to(tmp_path / "elsewhere/4.png")
    (root / "tulip/back").symlink_to(root)
    (tmp_path / "elsewhere/roses/loop").symlink_to(tmp_path / "elsewhere/roses")
    expected = ["rose/1.png", "rose/deep/2.png", "tulip/4.png", "tulip/5.png", "tulip/more/3.png"]
    assert sorted(image.path for image in listing(root).images) == expected
    predicted = [Path(image.path).relative_to(root).as_posix() for image in find_images([root])]
    assert predicted == expected


def test_link_to_a_folder_that_is_gone_is_refused(tmp_path: Path) -> None:
    """A class behind a link that leads nowhere does not vanish; a broken link to a file may."""
    root = touched("data", "tulip/1.png", "lily/1.png")
    (root / "rose").symlink_to(tmp_path / "unmounted")
    with pytest.raises(DataError, match=r"data/rose is a link to .*unmounted, which is not there"):
        listing(root)
    (root / "rose").rename(root / "tulip/gone.png")
    assert ListedImage("tulip/gone.png", "tulip") in listing(root).images


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_empty_class_folders_are_named(prefix: str) -> None:
    """A class folder with no file, or with hidden ones alone, is not passed over in silence."""
    root = touched(".", *(f"{prefix}{name}" for name in ("a/1.png", "b/1.png", "c/d/", "e/.x")))
    assert listing(root).empty_classes == [f"{prefix}c", f"{prefix}e"]


def test_folders_of_a_split_in_another_keep_their_paths() -> None:
    """Where a split holds one more folder for itself, its classes are found, also empty ones."""
    prefix = "seg_train/seg_train"
    root = touched(".", f"{prefix}/a/1.png", f"{prefix}/b/1.png", f"{prefix}/c/")
    (root / prefix / "b/again").symlink_to(root / prefix)
    found = listing(root)
    assert {image.path for image in found.images} == {f"{prefix}/a/1.png", f"{prefix}/b/1.png"}
    assert found.empty_classes == [f"{prefix}/c"]


@pytest.mark.parametrize(
    ("folders", "asked"),
    [(("part_1", "part_2"), True), (("photos",), True), (("0", "1"), False), (("a", "b"), False)],
)
def test_a_table_beside_folders_that_are_named_like_no_classes(
    folders: tuple[str, ...], asked: bool
) -> None:
    """A published data set often has its images in numbered folders, and its labels in a table."""
    root = touched(".", *(f"{name}/1.jpg" for name in folders))
    assert len(listing(root).images) == len(folders)
    touched(".", "metadata_2018.csv")
    if not asked:
        assert {image.label for image in listing(root).images} - {""} == set(folders)
        return
    with pytest.raises(DataError, match=r"'metadata_2018\.csv'.* --data\.label top"):
        listing(root)


def test_every_file_below_a_class_folder_has_its_name_as_label() -> None:
    """However deep it lies, in the order of the names, but for hidden files and folders."""
    names = ["dog/b.jpg", "cat/10.jpg", "cat/indoor/old/2.png"]
    hidden = [".DS_Store", "cat/.DS_Store", "cat/.cache/1.jpg", ".git/objects/1.jpg"]
    first = listing(touched("my flowers (new)", *names, *hidden, "readme.txt"))
    assert {image.path: image.label for image in first.images} == {
        "cat/10.jpg": "cat", "cat/indoor/old/2.png": "cat", "dog/b.jpg": "dog", "readme.txt": ""
    }  # fmt: skip
    assert first.name == "my-flowers-new"
    assert first.images == listing(touched("花", "readme.txt", *names[::-1])).images
    assert listing(Path("花")).name == "images"


def test_refuses_what_is_no_folder_of_classes() -> None:
    """A missing path and a folder without classes are each refused in a sentence."""
    touched(".", "packed/a.tar", "inbox/1.jpg", "inbox/labels.csv")
    for path, words in (
        (None, r"data\.path is missing"),
        (Path("inbox"), r"holds the labels, pass it: .*inbox/labels\.csv"),
        (Path("packed"), r"has no class folder .*, but 'a\.tar'\. To read"),
    ):
        with pytest.raises(DataError, match=words):
            listing(path)


SPLITS = {("cat", "train"), ("dog", "train")}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train/1.png", "train/old/2.png", "test/1.png", "car/1.png", "plane/1.png"],
         {(name, None) for name in ("train", "test", "car", "plane")}),
        (["Train/cat/1.png", "Train/dog/1.png", "TESTING/cat/1.png"], {*SPLITS, ("cat", "test")}),
        (["test/1.png", "control/1.png"], {("test", None), ("control", None)}),
        (
            ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "more/1.png"],
            {*SPLITS, ("cat", "test"), ("", None)},
        ),
        (
            ["seg_train/seg_train/cat/1.png", "seg_train/seg_train/dog/1.png",
             "test_images/test/cat/1.png", "seg_pred/seg_pred/1.png"],
            {*SPLITS, ("cat", "test"), ("", None)},
        ),
        (["train/train/1.png", "train/train/deep/2.png", "test/train/1.png", "test/car/1.png"],
         {("train", "train"), ("train", "test"), ("car", "test")}),
        (["train/", "car/1.png", "plane/1.png"], {("car", None), ("plane", None)}),
    ],
)  # fmt: skip
def test_splits_are_told_from_classes_of_the_same_name(
    files: list[str], expected: set[tuple[str, str | None]]
) -> None:
    """A folder named train is a split only if it holds class folders and nothing speaks against."""
    assert labels(touched(".", *files)) == expected


@pytest.mark.parametrize(
    ("files", "as_split", "as_class"),
    [
        (
            ["train/day/1.png", "train/night/1.png", "car/1.png"],
            {("day", "train"), ("night", "train"), ("", None)},
            {("train", None), ("car", None)},
        ),
        (["train/1.png", "test/1.png"], None, {("train", None), ("test", None)}),
        (["val/1.png", "test/1.png"], None, {("val", None), ("test", None)}),
    ],
)
def test_what_nobody_can_know_is_asked(
    files: list[str],
    as_split: set[tuple[str, str | None]] | None,
    as_class: set[tuple[str, str | None]],
) -> None:
    """Where train may be either, the sentence names the setting, and the setting decides."""
    root = touched(".", *files)
    with pytest.raises(
        DataError, match=r"'(train|test)' in .* may be a split or a class: .*split_folders"
    ):
        listing(root)
    assert labels(root, split_folders=False) == as_class
    if as_split:
        assert labels(root, split_folders=True) == as_split


@pytest.mark.parametrize(
    ("files", "is_class"),
    [
        ([f"mlruns/1/{RUN}/artifacts/a.png", "mlruns/1/models/m-1/artifacts/x"], False),
        ([f"mlartifacts/0/{RUN}/artifacts/a.png", "mlruns/", "mlflow.db", "mlflow.db-wal"], False),
        (["mlruns/1/1.png"], True),
        ([f"mlruns/1/{RUN}/artifacts/a.png", "mlruns/own.png"], True),
    ],
)
def test_artifacts_of_mlflow_are_no_class(files: list[str], is_class: bool) -> None:
    """What MLflow keeps beside the images is not data; a class with the same name is."""
    found = listing(touched(".", "cat/1.png", "dog/1.png", *files))
    assert ({image.label for image in found.images} == {"cat", "dog"}) is not is_class
    assert found.empty_classes == []


@pytest.mark.slow  # a process that keeps to permissions
def test_a_closed_folder_ends_the_command(tmp_path: Path) -> None:
    """A folder that cannot be opened is answered with its name and exit code 2, at any depth."""
    closed = touched(".", "photos/rose/1.png", "photos/tulip/deeper/") / "photos/tulip/deeper"
    command = [sys.executable, "-m", "patchline.flows.command_line", "run", "photos"]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root opens every folder, and there is no setpriv to prevent it")
        command = [setpriv, "--bounding-set", "-dac_override,-dac_read_search", *command]
    closed.chmod(0)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    closed.chmod(0o700)
    assert done.returncode == 2, done.stderr
    assert f"{closed} cannot be opened (Permission denied)" in done.stderr
    assert not (tmp_path / "mlflow.db").exists()
