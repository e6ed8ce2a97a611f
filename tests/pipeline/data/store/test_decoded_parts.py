"""A store that several workers decode, each a part of it: the pixels of a single process."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.data.store import store_builds
from patchline.pipeline.data.store.decoded_files import IMAGES_FILE
from patchline.pipeline.data.store.prepared_store import StoreSpec, prepare
from patchline.pipeline.workers import active_launcher
from tests.conftest import write_photos
from tests.pipeline.data.store.test_prepared_store import rows_of
from tests.pipeline.workers.wide_launcher import Wide

SPEC = StoreSpec(channels=3, height=12, width=16, resize="pad")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of ten images, of which a part needs three."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store_builds, "FEWEST_IMAGES_OF_PART", 3)
    return write_photos(tmp_path / "photos", classes=1, images=10) / "across"


def test_parts_make_the_store_of_one_process(photos: Path, tmp_path: Path) -> None:
    """The same pixels, progress image by image; what another store holds is copied."""
    rows = rows_of(photos)
    alone, _ = prepare(rows, photos, SPEC, tmp_path / "alone/stores")
    wide, done, stores = Wide(), list[int](), tmp_path / "wide/stores"
    with active_launcher.using("wide", lambda: wide):
        first, _ = prepare(rows.iloc[1:8:3], photos, SPEC, stores)
        assert wide.parts == []  # too few for two parts
        store, reused = prepare(rows, photos, SPEC, stores, lambda now, _: done.append(now))
        assert len(wide.parts) == 2
        assert done == list(range(1, 11))
        assert not reused
        assert prepare(rows, tmp_path / "gone", SPEC, stores) == (store, True)
    assert store.name == alone.name != first.name
    assert np.array_equal(*(np.load(each / IMAGES_FILE) for each in (store, alone)))
    assert not list((tmp_path / "wide").glob(".building-*"))


def test_what_only_this_machine_has_is_decoded_here(tmp_path: Path, photos: Path) -> None:
    """On nodes that do not see the workspace, there would be nothing to read."""
    root = tmp_path / ".patchline/sources/archive/x"
    shutil.copytree(photos, root)
    wide = Wide()
    wide.is_far = True
    with active_launcher.using("wide", lambda: wide):
        prepare(rows_of(root), root, SPEC, tmp_path / "stores")
    assert wide.parts == []
