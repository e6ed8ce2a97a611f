"""What is remembered of files that have not changed, and when they are opened again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests.scanning import Facts, ScanMemory, scan
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.shared_files import SharedFiles
from patchline.plugin_api import ImageListing
from patchline.plugins.stores.objects import RemoteStore
from tests.conftest import draw_photo, write_photos
from tests.pipeline.data.manifests.test_manifest import listed
from tests.pipeline.workspace.machines import machine
from tests.plugins.listings import two_classes

REMEMBERED = "remembered"
"""Written into the memory's column `mode`, so that a row shows where it comes from."""


def marked(memory: ScanMemory) -> None:
    """Mark every row of a memory."""
    pd.read_parquet(memory.file).assign(mode=REMEMBERED).to_parquet(memory.file)


def scanned(listing: ImageListing, work: Path, *, fresh: bool = False) -> pd.DataFrame:
    """Scan with the memory of a workspace."""
    memory = ScanMemory(listing.root, work, fresh=fresh)
    return scan(listing, memory=memory).set_index("path")


@pytest.mark.usefixtures("later")
def test_only_what_changed_is_opened_again(tmp_path: Path) -> None:
    """A file with other bytes of the same size and time, a new one and a damaged one."""
    root, work = two_classes(3), tmp_path / "work"
    (root / "across/bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno image")
    first = scanned(listed(root), work)
    assert first.equals(scan(listed(root)).set_index("path"))
    marked(ScanMemory(root, work))
    changed = root / "across/000.png"
    times, content = changed.stat(), bytearray(changed.read_bytes())
    content[-20] ^= 255  # in a checksum
    changed.write_bytes(content)
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    (root / "down/new.png").write_bytes((root / "down/000.png").read_bytes())
    second = scanned(listed(root), work)
    opened = second.index[second["mode"] != REMEMBERED]
    assert list(opened) == ["across/000.png", "across/bad.png", "down/new.png"]
    assert len(second) == 8
    assert str(second.loc["across/000.png", "sha256"]) != str(first.loc["across/000.png", "sha256"])
    assert second.loc["across/bad.png", "status"] == "damaged"
    assert second.dtypes.equals(first.dtypes)
    assert not (scanned(listed(root), work, fresh=True)["mode"] == REMEMBERED).any()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("damage", ["bytes", "columns"])
def test_a_damaged_memory_is_written_again(tmp_path: Path, damage: str) -> None:
    """It costs time, not the run."""
    root, work = write_photos(tmp_path / "photos", classes=1, images=2), tmp_path / "work"
    first, file = scanned(listed(root), work), ScanMemory(root, work).file
    if damage == "columns":
        pd.DataFrame({"path": ["across/000.png"]}).to_parquet(file)
    else:
        file.write_bytes(b"PAR1")
    assert scanned(listed(root), work).equals(first)
    marked(ScanMemory(root, work))
    assert (scanned(listed(root), work)["mode"] == REMEMBERED).all()


@pytest.mark.usefixtures("later")
def test_an_archive_is_read_again_when_it_is_another_file(tmp_path: Path) -> None:
    """The members of an unchanged archive are remembered; the images are the same."""
    photos = two_classes(6)
    config = validate_config({"data": {"path": str(tmp_path / "photos.zip")}})
    found = []
    for _ in range(2):
        shutil.make_archive(str(photos), "zip", photos)
        found += [ingestion.ingest(config, tmp_path / "work").fingerprint for _ in range(2)]
        Image.fromarray(draw_photo(0, 99)).save(photos / "down/000.png")
    [file] = (tmp_path / "work/scans").iterdir()
    assert len(pd.read_parquet(file)) == 12
    assert found[0] == found[1] != found[2] == found[3]


def test_a_scan_of_objects_is_shared(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine describes only what has changed since, though it downloads the files."""
    store = RemoteStore(parse_address(f"s3://{bucket}/photos", "x"))
    for file in write_photos(tmp_path / "own", images=6).rglob("*.png"):
        store.upload(file, file.relative_to(tmp_path / "own").as_posix())
    remembered = list[int]()
    unchanged_rows = ScanMemory.unchanged_rows

    def counted(memory: ScanMemory, paths: list[str], facts: Facts) -> pd.DataFrame:
        rows = unchanged_rows(memory, paths, facts)
        remembered.append(len(rows))
        return rows

    monkeypatch.setattr(ScanMemory, "unchanged_rows", counted)
    config = validate_config({"data": {"source": "image_folder", "path": store.uri}})
    for name in ("a", "b", "c"):
        monkeypatch.setattr(remote_data, "_listings", {})
        if name == "c":
            store.upload(tmp_path / "own/down/001.png", "down/000.png")
        with machine(name, f"s3://{bucket}/team") as workspace:
            assert len(ingestion.ingest(config, workspace).class_counts) == 3
    assert remembered == [0, 18, 17]
    names = SharedFiles(RemoteStore(parse_address(f"s3://{bucket}/team", "x"))).names("")
    assert len([each for each in names if "scans/" in each]) == 1
