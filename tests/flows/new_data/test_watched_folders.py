"""A snapshot changes with each change of the files that a run reads, behind links too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from patchline.flows.new_data import watched_folders
from patchline.flows.new_data.watched_folders import read_ignored_files, snapshot
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_IGNORED
from patchline.plugin_api import SourceContext
from patchline.plugins.data_sources.image_folder import ImageFolder, ImageFolderConfig
from patchline.plugins.stores.objects import RemoteStore
from tests.conftest import write_photos


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 8 photos in 2 classes."""
    return write_photos(tmp_path / "photos", classes=2, images=4, side=8)


def test_a_snapshot_sees_files_come_go_and_change(folder: Path) -> None:
    """Each change of a path, a size or a date gives another digest; going back gives the old.

    Hidden and .part files do not count, and neither does what MLflow writes beside the data.
    """
    before = snapshot(folder)
    assert before.files == 8
    for ignored in (
        *("across/.DS_Store", "across/film.png.part", ".cache/x.png", "mlflow.db"),
        f"mlruns/1/{'0' * 32}/artifacts/report.png",
    ):
        write_text(folder / ignored, "")
    assert snapshot(folder) == before
    added, renamed = folder / "across" / "new.png", folder / "across" / "other.png"
    digests = {before.digest}
    changes: tuple[Callable[[], object], ...] = (
        added.touch,
        lambda: added.write_bytes(b"x"),
        lambda: os.utime(added, ns=(1, 1)),
        lambda: added.rename(renamed),
    )
    for change in changes:
        change()
        digests.add(snapshot(folder).digest)
    assert len(digests) == 5
    renamed.unlink()
    assert snapshot(folder) == before


def test_a_snapshot_sees_what_lies_behind_links_as_a_run_does(tmp_path: Path) -> None:
    """A new image behind a linked class folder, or in a linked folder inside one, is a change."""
    folder = tmp_path / "photos"
    (folder / "down").mkdir(parents=True)
    (folder / "down" / "0.png").touch()
    (tmp_path / "roses" / "old").mkdir(parents=True)
    (folder / "rose").symlink_to(tmp_path / "roses")
    (tmp_path / "more").mkdir()
    (folder / "down" / "more").symlink_to(tmp_path / "more")
    (folder / "down" / "back").symlink_to(folder)
    source = ImageFolder(ImageFolderConfig(), SourceContext(str(folder), tmp_path))
    seen = [snapshot(folder)]
    for new in ("roses/1.png", "roses/old/2.png", "more/3.png"):
        (tmp_path / new).touch()
        seen.append(snapshot(folder))
        assert len(source.list_images().images) == seen[-1].files
    assert len({each.digest for each in seen}) == 4
    assert [each.files for each in seen] == [1, 2, 3, 4]


def test_a_snapshot_skips_what_the_runs_of_its_watch_skip(folder: Path) -> None:
    """`data.ignore` decides in both, also where it keeps what is skipped by default."""
    drafts, thumbnails = folder / "across" / "drafts", folder / "across" / "@eaDir"
    for each in (drafts, thumbnails):
        each.mkdir()
    config = validate_config({"data": {"path": str(folder), "ignore": ["drafts/"]}})
    ignored = read_ignored_files({"config": config.model_dump(mode="json")})
    before = snapshot(folder, ignored)
    (drafts / "1.png").touch()
    assert snapshot(folder, ignored) == before
    (thumbnails / "1.png").touch()
    assert snapshot(folder, ignored).files == before.files + 1
    assert read_ignored_files({}) is read_ignored_files({"config": None}) is DEFAULT_IGNORED


def test_a_folder_on_an_object_store_has_snapshots(bucket: str) -> None:
    """A new, a changed and a deleted object change it; hidden and unfinished ones do not."""
    store = RemoteStore(parse_address(f"s3://{bucket}/photos", "x"))
    for name in ("1", "2"):
        store.write(f"cats/{name}.jpg", b"one")
    before = snapshot(store.uri)
    assert before.files == 2
    for name in (".hidden/3.jpg", "cats/.4.jpg", "cats/5.jpg.part", "cats/Thumbs.db"):
        store.write(name, b"x")
    assert snapshot(store.uri) == before
    digests = {before.digest}
    for change in (
        lambda: store.write("cats/1.jpg", b"ONE"),
        lambda: store.write("dogs/1.jpg", b"dog"),
        lambda: store.delete("cats/2.jpg"),
    ):
        change()
        digests.add(snapshot(store.uri).digest)
    assert len(digests) == 4


def test_an_address_can_be_watched(bucket: str) -> None:
    """As `pathlib` passes it, too; what is no folder is refused."""
    store = RemoteStore(parse_address(f"s3://{bucket}/photos", "x"))
    for key in ("cats/1.jpg", "labels.csv"):
        store.write(key, b"one")
    assert watched_folders.check_folder(Path(store.uri)) == store.uri
    assert watched_folders.check_name(store.uri, None) == "photos"
    for path, words in (("photos/labels.csv", "is a file, a table"), ("none", "There is nothing")):
        with pytest.raises(DataError, match=words):
            watched_folders.check_folder(Path(f"s3://{bucket}/{path}"))
