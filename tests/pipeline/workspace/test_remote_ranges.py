"""Archives on an object store: of a zip the directory is read, and the members that are used."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.data.reading.image_root import archive_of, root_image_bytes
from patchline.pipeline.errors import StorageError
from patchline.pipeline.packaging.prediction.image_files import find_images
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.files import archives
from patchline.pipeline.workspace.files.archives import open_archive
from patchline.pipeline.workspace.files.placeholders import FOLDER, PARTS_FOLDER, placeholder
from patchline.pipeline.workspace.files.shared_file import OpenFile
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.remote_ranges import PART_BYTES
from patchline.plugin_api import ImageListing
from patchline.plugins.stores import objects as remote_store
from patchline.plugins.stores.objects import RemoteStore
from tests.conftest import write_photos
from tests.object_server import FaultyConnection

_LARGE = random.Random(0).randbytes(3 * PART_BYTES)  # noqa: S311 - cannot be compressed


def first_parts() -> list[Path]:
    """Return the kept files of the first part of each object."""
    return [each for each in (WORKSPACE / PARTS_FOLDER).rglob("0*") if each.is_file()]


def packed(folder: Path, suffix: str) -> bytes:
    """Return an archive of a folder of photos between two large members that are no images."""
    photos = [
        (f"flowers/{file.relative_to(folder)}", file) for file in sorted(folder.rglob("*.png"))
    ]
    members = [("flowers/first.bin", _LARGE), *((name, file.read_bytes()) for name, file in photos)]
    members += [("flowers/second.bin", _LARGE), ("flowers/zebra/last.png", members[1][1])]
    content = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(content, "w") as archive:
            for name, data in members:
                archive.writestr(name, data)
    else:
        with tarfile.open(fileobj=content, mode="w") as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return content.getvalue()


def listed(path: str) -> ImageListing:
    """List the images of a path, as a run does."""
    return listing_of(build_config(path, preset_name="none"), WORKSPACE.resolve())


def content_of(listing: ImageListing, path: str) -> bytes:
    """Return the bytes of an image."""
    with root_image_bytes(listing.root, path) as data:
        return bytes(data)


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_only_what_is_used_is_read(
    connection: FaultyConnection, top: RemoteStore, tmp_path: Path, suffix: str
) -> None:
    """Names come from the directory or the headers, an image from its part; none comes twice."""
    folder = write_photos(tmp_path / "flowers", classes=2, images=2)
    top.write(f"flowers{suffix}", packed(folder, suffix))
    connection.received = 0
    there = listed(f"{top.uri}/flowers{suffix}")
    assert connection.received < 3.1 * PART_BYTES  # of a zip the first and the last
    names = {(Path(each.path).name, each.label) for each in there.images}
    assert names >= {("000.png", "across"), ("001.png", "down"), ("last.png", "zebra")}
    for path, file in {
        "across/001.png": "across/001.png",
        "zebra/last.png": "across/000.png",
    }.items():
        assert content_of(there, path) == (folder / file).read_bytes()
    assert connection.received < 4.1 * PART_BYTES
    connection.received = 0
    again = listed(f"{top.uri}/flowers{suffix}")
    assert content_of(again, "across/001.png") == (folder / "across/001.png").read_bytes()
    shown = [each.path for each in find_images([Path(f"{top.uri}/flowers{suffix}")])]
    assert any(path.endswith("last.png") for path in shown)
    assert connection.received < 6000


def test_every_range_is_that_of_the_file(
    connection: FaultyConnection, top: RemoteStore, tmp_path: Path
) -> None:
    """Reads at random places, across parts and beyond the end, return what a file would."""
    numbers = random.Random(1)  # noqa: S311 - where to read
    content = numbers.randbytes(5 * PART_BYTES + 77)
    top.write("any.zip", content)
    (tmp_path / "any.zip").write_bytes(content)
    there = OpenFile(Path(remote_data.local_path(f"{top.uri}/any.zip", whole=False)))
    here = OpenFile(tmp_path / "any.zip")
    connection.received = 0
    assert there.size == here.size == len(content)
    for _ in range(60):
        start, size = numbers.randrange(6 * PART_BYTES), numbers.choice([0, 1, 30, 4096, 3 << 20])
        assert there.read_at(start, size) == here.read_at(start, size)
    assert there.part().read() == content
    assert connection.received < 1.05 * len(content)


def test_a_failing_connection_is_no_damaged_image(
    connection: FaultyConnection,
    top: RemoteStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short failures are repeated; a longer one is an error of the store, not of an image."""
    folder = write_photos(tmp_path / "flowers", classes=2, images=2)
    top.write("flowers.zip", packed(folder, ".zip"))
    connection.fault, connection.methods, connection.count = "hang_up", ("GET",), 2
    there = listed(f"{top.uri}/flowers.zip")
    assert connection.count < 0
    monkeypatch.setattr(remote_store, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr("patchline.plugins.stores.objects._reached", set())
    archives._open.cache_clear()
    open_archive(archive_of(there.root) or there.root)  # by the parts that are there
    connection.methods, connection.count = ("GET",), 1 << 30
    with pytest.raises(StorageError, match="cannot be reached"):
        content_of(there, "across/001.png")
    connection.methods = ()
    assert content_of(there, "across/001.png") == (folder / "across/001.png").read_bytes()


def test_a_cache_that_was_emptied_or_damaged_is_filled_again(
    top: RemoteStore, tmp_path: Path
) -> None:
    """Parts may go at any time, also while an archive is open; damaged ones are fetched again."""
    folder = write_photos(tmp_path / "flowers", classes=2, images=2)
    top.write("flowers.zip", packed(folder, ".zip"))
    there = listed(f"{top.uri}/flowers.zip")
    expected = (folder / "across/001.png").read_bytes()
    for flipped in (True, False):
        for part in first_parts():
            data = part.read_bytes()
            changed = data[:-9] + bytes(each ^ 1 for each in data[-9:-4]) + data[-4:]
            part.write_bytes(changed if flipped else data[:-1])
        archives._open.cache_clear()  # as in the next command
        assert content_of(listed(f"{top.uri}/flowers.zip"), "across/001.png") == expected
    for part in first_parts():
        part.unlink()
    assert content_of(there, "down/001.png") == (folder / "down/001.png").read_bytes()


def test_a_file_elsewhere_is_no_placeholder(tmp_path: Path) -> None:
    """A file that a stranger made to look like one does not make anybody read an object."""
    file = tmp_path / "flowers.zip"
    file.write_text('{"format": "patchline object 1", "bytes": 10, "e_tag": "x"}')
    assert placeholder(file) is None
    below = tmp_path / FOLDER / "s3/bucket/flowers.zip"
    below.parent.mkdir(parents=True)
    below.write_text('{"format": "another", "bytes": 10}')
    assert placeholder(below) is None
