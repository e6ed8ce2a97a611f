"""Images that are decoded while a folder is read are not decoded again for the prepared store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from patchline.pipeline.data.store.store_builds import lock_of
from patchline.pipeline.workspace.files import file_locks
from tests.conftest import draw_photo
from tests.pipeline.data.test_ingestion import config_of
from tests.plugins.listings import two_classes


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shard hold two images."""
    monkeypatch.setattr(store_shards, "SHARD_BYTES", 2 * 24 * 24 * 3)


@pytest.fixture
def photos() -> Path:
    """Return a folder of usable photographs, with a damaged and a foreign file among them."""
    folder = two_classes(6)
    Image.fromarray(draw_photo(3, 1, 40)[:, :20]).save(folder / "across/0010.jpg")
    (folder / "across/0015.jpg").write_bytes(b"\xff\xd8\xff no image")
    (folder / "down/notes.txt").write_text("not an image")
    return folder


def folders_in(work: Path) -> list[str]:
    """Return the names of the stores that are complete, begun or being scanned."""
    return sorted(each.name for each in (work / "prepared").glob("*") if each.name != ".locks")


def test_the_store_needs_no_files_once_they_are_read(photos: Path) -> None:
    """The images are those that decoding gives, although their files have gone."""
    config, work = config_of(photos, image_size=24, resize="pad"), Path("work")
    ingestion.ingest(config, work)
    Image.fromarray(draw_photo(2, 7, 50)).save(photos / "across/new.png")
    data = ingestion.ingest(config, work)  # of two scans, the drafts are joined and removed
    rows = manifests.usable(manifests.load(data.manifest_file))
    decoded, _ = prepare(rows, photos, StoreSpec(3, 24, 24, "pad"), work / "decoded", fresh=True)
    shutil.rmtree(photos / "across")
    found = ingestion.prepare(ingestion.resolve(config, data), data, work).store
    assert np.array_equal(open_images(found)[:], open_images(decoded)[:])
    assert len(folders_in(work)) == 1


@pytest.mark.parametrize(
    "settings", [{"data": {"store": "packed"}}, {"data": {"channels": 1}}, {"preset": "quick"}, {}]
)
def test_nothing_is_kept_if_the_format_may_be_another(
    photos: Path, settings: dict[str, Any]
) -> None:
    """A preset may choose another size; grey and packed images are decoded in other ways."""
    for file in () if settings else photos.rglob("*.png"):
        Image.open(file).convert("L").save(file)
    (photos / "across/0010.jpg").unlink()
    data = {"source": "image_folder", "path": str(photos), **settings.get("data", {})}
    ingestion.ingest(validate_config({**settings, "data": data}), Path("work"))
    assert folders_in(Path("work")) == []


def test_what_a_killed_scan_has_left_is_removed(photos: Path) -> None:
    """A scan removes the rest of one that was killed, and leaves one alone that is running."""
    running = Path("work/prepared/.scanning-b")
    for folder in (running, running.with_name(".scanning-a")):
        folder.mkdir(parents=True)
        (folder / "images.npy").write_bytes(b"half of it")
    with file_locks.try_lock(lock_of(running)) as held:
        assert held
        ingestion.ingest(config_of(photos, image_size=24), Path("work"))
    assert [name for name in folders_in(Path("work")) if "scan" in name] == [".scanning-b"]
