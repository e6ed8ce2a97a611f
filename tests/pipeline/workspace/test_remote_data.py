"""Data on an object store: read by every data source as if it lay on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.remote_data import RemoteIndex
from patchline.plugin_api import ImageListing
from patchline.plugins.stores.objects import RemoteStore
from tests.conftest import write_photos
from tests.object_server import FaultyConnection, ObjectServer


def put(store: RemoteStore, folder: Path, prefix: str) -> None:
    """Upload the files of a folder."""
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        store.upload(file, f"{prefix}/{file.relative_to(folder).as_posix()}")


def listed(path: str, source: str) -> ImageListing:
    """List the images of a path, as `patchline run PATH` does, and check which source reads it."""
    config = build_config(path, preset_name="none")
    assert config.data.source == source
    assert config.data.path == path
    return listing_of(config, WORKSPACE.resolve())


def images(listing: ImageListing) -> list[tuple[str, str]]:
    """Return name and label of each image."""
    return sorted((Path(each.path).name, each.label) for each in listing.images)


def test_nothing_is_downloaded_twice(
    connection: FaultyConnection, top: RemoteStore, tmp_path: Path
) -> None:
    """Of a folder that has grown only the new objects are fetched, and those that have changed.

    Its class folders are those of the same folder on a disk, name included.
    """
    folder = write_photos(tmp_path / "flowers", classes=2, images=2)
    put(top, folder, "flowers")

    def fetched() -> set[str]:
        connection.seen.clear()
        listed(f"{top.uri}/flowers", "image_folder")
        gets = [line for line in connection.seen if line.startswith("GET") and ".png" in line]
        return {line.split()[1].partition("flowers/")[2] for line in gets}

    assert len(fetched()) == 4
    assert fetched() == set()
    there, here = (listed(path, "image_folder") for path in (f"{top.uri}/flowers", str(folder)))
    assert (there.name, images(there)) == (here.name, images(here))
    for image in there.images:
        assert (there.root / image.path).read_bytes() == (here.root / image.path).read_bytes()
    top.upload(folder / "down/000.png", "flowers/down/999.png")
    top.upload(folder / "down/001.png", "flowers/down/000.png")
    top.delete("flowers/across/000.png")
    assert fetched() == {"down/999.png", "down/000.png"}
    assert not (there.root / "across/000.png").exists()
    (there.root / "down/999.png").write_bytes(b"damaged")
    assert fetched() == {"down/999.png"}


def test_folders_that_a_console_has_created_are_folders(top: RemoteStore, tmp_path: Path) -> None:
    """The empty objects that stand for them, with a slash at the end, are no files."""
    folder = write_photos(tmp_path / "flowers", classes=2, images=2)
    put(top, folder, "flowers")
    client = boto3.client("s3")
    for key in ("flowers/", "flowers/across/", "flowers/empty/", "flowers/empty/below/"):
        client.put_object(Bucket=top.uri.removeprefix("s3://"), Key=key)
    there = listed(f"{top.uri}/flowers", "image_folder")
    assert images(there) == images(listed(str(folder), "image_folder"))
    listed(f"{top.uri}/flowers", "image_folder")
    top.write("flowers/down", b"with content")
    with pytest.raises(DataError, match=r"flowers/down is an object and a folder, which no disk"):
        listed(f"{top.uri}/flowers", "image_folder")


def test_a_table_names_images_beside_it_and_elsewhere(
    top: RemoteStore, objects: ObjectServer, tmp_path: Path
) -> None:
    """Paths are relative to the table in the bucket, or addresses, also in another bucket."""
    folder = write_photos(tmp_path / "flowers", classes=2, images=3)
    put(top, folder / "across", "tables/images")
    other = RemoteStore(parse_address(f"s3://{objects.new_bucket()}", "the bucket"))
    put(other, folder / "down", "down")
    rows = [f"images/{number:03d}.png,across" for number in range(3)]
    rows += [f"{other.uri}/down/{number:03d}.png,down" for number in range(3)]
    top.write("tables/labels.csv", "\n".join(["image,label", *rows]).encode())
    there = listed(f"{top.uri}/tables/labels.csv", "table")
    assert images(there) == images(listed(str(folder), "image_folder"))
    # a table on this machine may name objects, too
    (tmp_path / "here.csv").write_text("\n".join(["image,label", *rows[3:], *rows[3:]]))
    assert len(listed(str(tmp_path / "here.csv"), "table").images) == 3
    # a key is what is written; one that does not exist is decoded
    keys = ["x/a%20b.png", "x/a b.png", "x/Q&A?#1.png", "x/c d.png"]
    for key in keys:
        top.upload(folder / "down/000.png", key)
    named = [f"{top.uri}/{key},{key[2]}" for key in (keys[0], keys[2], "x/c%20d.png")]
    (tmp_path / "odd.csv").write_text("\n".join(["image,label", *named]))
    found = images(listed(str(tmp_path / "odd.csv"), "table"))
    assert found == [("Q&A?#1.png", "Q"), ("a%20b.png", "a"), ("c d.png", "c")]


def test_what_does_not_exist_is_said(top: RemoteStore) -> None:
    """An empty place, a wrong bucket and images that a table names wrongly have their sentences."""
    with pytest.raises(DataError, match=rf"There is nothing at {top.uri}/flowers\. Check"):
        listed(f"{top.uri}/flowers", "image_folder")
    with pytest.raises(ConfigError, match="names the bucket no-such-bucket"):
        listed("s3://no-such-bucket/flowers", "image_folder")
    rows = [f"{top.uri}/none/{number}.png,a" for number in range(4)]
    top.write("labels.csv", "\n".join(["image,label", *rows]).encode())
    with pytest.raises(DataError, match="4 of 4 images named in column 'image'"):
        listed(f"{top.uri}/labels.csv", "table")


def test_an_address_with_credentials_is_refused() -> None:
    """It would be logged with the settings; the secret is in no message."""
    with pytest.raises(ConfigError, match="holds more than a bucket and a path") as caught:
        build_config("s3://key:hunter2@bucket/flowers", preset_name="none")
    assert "hunter2" not in str(caught.value)


def test_a_download_that_was_killed_continues(
    top: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had arrived is not fetched again, whatever the process could still write."""
    folder = write_photos(tmp_path / "flowers", classes=1, images=4)
    put(top, folder, "flowers")
    fetched = list[str]()
    download = RemoteStore.download

    def counted(self: RemoteStore, key: str, file: Path) -> Any:
        if len(fetched) == most:
            raise KeyboardInterrupt
        fetched.append(key)
        return download(self, key, file)

    monkeypatch.setattr(RemoteStore, "download", counted)
    monkeypatch.setattr(remote_data, "_AT_ONCE", 1)
    most = 3
    with monkeypatch.context() as until_killed:
        until_killed.setattr(RemoteIndex, "save", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            remote_data.local_path(f"{top.uri}/flowers")
    [journal] = (WORKSPACE / "sources/objects/.indexes").glob("*.journal")
    journal.write_bytes(journal.read_bytes() + b'["across/00')
    most = 9
    local = Path(remote_data.local_path(f"{top.uri}/flowers"))
    assert sorted(fetched) == sorted(
        each.relative_to(local).as_posix() for each in local.rglob("*.png")
    )
    assert not journal.exists()
