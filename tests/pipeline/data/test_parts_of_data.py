"""Data read by several workers, each a part of it: the rows and pixels of a single process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.data.manifests import describing_worker
from patchline.pipeline.data.manifests.describing import KeptImageArray
from patchline.pipeline.data.manifests.describing_worker import rows_of
from patchline.pipeline.data.store import decoding_worker
from patchline.pipeline.data.store.prepared_store import StoreSpec, prepare
from patchline.pipeline.data.store.store_shards import IMAGES_FILE
from patchline.pipeline.workers import worker_start
from patchline.plugin_api import ListedImage
from tests.conftest import write_photos
from tests.pipeline.data.store import test_prepared_store
from tests.pipeline.workers.wide_launcher import Wide

SPEC = StoreSpec(channels=3, height=12, width=16, resize="pad")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a part need six files, or three images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(describing_worker, "FEWEST_FILES_OF_PART", 6)
    monkeypatch.setattr(decoding_worker, "FEWEST_IMAGES_OF_PART", 3)


def test_parts_return_the_rows_of_one_process(tmp_path: Path) -> None:
    """Whole, damaged, missing and oddly named files, in their order; images in their own rows."""
    root = write_photos(tmp_path / "photos", classes=2, images=5)
    (root / "across/bad.png").write_bytes(b"no image")
    names = [each.relative_to(root).as_posix() for each in sorted(root.rglob("*.png"))]
    files = [(ListedImage(name, "down", "test"), True) for name in (*names, "gone.png", "\udcff")]
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros((len(files), 8, 8, 3), np.uint8))
    alone, divided = (KeptImageArray(tmp_path / name, "squash") for name in ("a.npy", "b.npy"))
    expected, wide = list(rows_of(root, files, kept=alone)), Wide()
    with worker_start.use_launcher("wide", lambda: wide):
        rows = list(rows_of(root, files, kept=divided))
    assert (len(wide.parts), rows) == (2, expected)
    assert np.array_equal(np.load(alone.file), np.load(divided.file))


def test_parts_make_the_store_of_one_process() -> None:
    """The same pixels, progress image by image; what another store holds is copied."""
    photos = write_photos(Path("photos"), classes=1, images=10) / "across"
    rows = test_prepared_store.rows_of(photos)
    alone, _ = prepare(rows, photos, SPEC, Path("alone/stores"))
    wide, done, stores = Wide(), list[int](), Path("wide/stores")
    with worker_start.use_launcher("wide", lambda: wide):
        first, _ = prepare(rows.iloc[1:8:3], photos, SPEC, stores)
        assert wide.parts == []  # too few for two parts
        store, reused = prepare(rows, photos, SPEC, stores, lambda now, _: done.append(now))
        assert (len(wide.parts), done) == (2, list(range(1, 11)))
        assert not reused
        assert prepare(rows, Path("gone"), SPEC, stores) == (store, True)
    assert store.name == alone.name != first.name
    assert np.array_equal(*(np.load(each / IMAGES_FILE) for each in (store, alone)))
