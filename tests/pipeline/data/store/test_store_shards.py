"""The shards of the prepared store: damage, interruptions, two builders, and what is copied."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from tests.conftest import draw_photo
from tests.patience import patient
from tests.pipeline.data.store.test_prepared_store import rows_of, stores_in

SPEC = StoreSpec(channels=3, height=16, width=16, resize="crop")
SHARD = 2 * 16 * 16 * 3
"""Bytes of two images: seven images are in four shards."""
_BUILDER = """
import os, signal, sys
from pathlib import Path
import pandas as pd
from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.prepared_store import StoreSpec, prepare

root, stores, killed_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store_shards.SHARD_BYTES = int(sys.argv[4])

def on_progress(done, total):
    if done == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)

rows = pd.read_parquet(sys.argv[5])
print(prepare(rows, root, StoreSpec(3, 16, 16, "crop"), stores, on_progress)[1], flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of seven images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(7):
        Image.fromarray(draw_photo(number % 4, number, 20)).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shard hold two images."""
    monkeypatch.setattr(store_shards, "SHARD_BYTES", SHARD)


def start_builder(root: Path, stores: Path, rows: Path, killed_at: int) -> subprocess.Popen[str]:
    """Start a process that builds a store.

    Args:
        root: the folder of the images.
        stores: the folder of all stores.
        rows: Parquet file with the rows of the manifest.
        killed_at: the process kills itself after as many images; with -1, never.
    """
    arguments = [str(root), str(stores), str(killed_at), str(SHARD), str(rows)]
    return subprocess.Popen(
        [sys.executable, "-c", _BUILDER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("small_shards")
def test_two_builders_at_once_decode_once(root: Path, tmp_path: Path) -> None:
    """Of two processes that want the same store, one decodes; the other says so and waits."""
    stores, table = tmp_path / "stores", tmp_path / "rows.parquet"
    rows = rows_of(root)
    rows.to_parquet(table)
    waiting: list[subprocess.Popen[str]] = []

    def start_another(_done: int, _total: int) -> None:
        if not waiting:  # and this process holds the lock
            waiting.append(start_builder(root, stores, table, -1))
            assert waiting[0].stderr
            assert "waiting for it" in waiting[0].stderr.readline()

    assert not prepare(rows, root, SPEC, stores, start_another)[1]
    assert waiting[0].communicate(timeout=patient(60))[0] == "True\n"
    assert len(stores_in(stores)) == 1


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_build_continues(root: Path, tmp_path: Path) -> None:
    """After SIGKILL, the shards that are whole are used, and only the others are decoded."""
    stores, table = tmp_path / "stores", tmp_path / "rows.parquet"
    rows = rows_of(root)
    rows.to_parquet(table)
    expected = open_images(prepare(rows, root, SPEC, tmp_path / "whole")[0])[:]
    with start_builder(root, stores, table, 5) as builder:
        builder.communicate(timeout=patient(60))
    assert builder.returncode == -signal.SIGKILL
    (left,) = stores_in(stores)
    assert left.name.startswith(".building-")
    for path in rows["path"][:4]:  # of the first two shards
        (root / path).unlink()
    seen: list[int] = []
    store, reused = prepare(rows, root, SPEC, stores, lambda done, _: seen.append(done))
    assert seen == [5, 6, 7]
    assert not reused
    assert stores_in(stores) == [store]
    assert np.array_equal(open_images(store)[:], expected)


def flip(file: Path, offset: int) -> None:
    """Change one bit of a file."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


@pytest.mark.usefixtures("small_shards")
def test_only_the_damaged_shard_is_decoded_again(root: Path, tmp_path: Path) -> None:
    """The other shards need no file; a reader that has the store open sees the repaired pixels."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    expected = np.array(open_images(store))
    reading = open_images(store)[:]
    flip(store / "images.npy", (store / "images.npy").stat().st_size - 5)
    for path in rows["path"][:6]:  # all but the last shard's
        (root / path).unlink()
    assert prepare(rows, root, SPEC, tmp_path / "stores") == (store, False)
    assert np.array_equal(open_images(store)[:], expected)
    assert np.array_equal(reading, expected)
    assert prepare(rows, root, SPEC, tmp_path / "stores") == (store, True)


@pytest.mark.usefixtures("small_shards")
def test_only_new_and_changed_files_are_decoded(root: Path, tmp_path: Path) -> None:
    """Rows of an earlier store are copied wherever they are now; the rest is decoded."""
    before = rows_of(root)
    prepare(before, root, SPEC, tmp_path / "stores")
    Image.fromarray(draw_photo(3, 77)).save(root / "2.png")
    Image.fromarray(draw_photo(2, 78)).save(root / "0 first.png")
    (root / "1.png").unlink()
    rows = rows_of(root)
    expected = open_images(prepare(rows, root, SPEC, tmp_path / "whole")[0])[:]
    for path in set(rows["path"]) - {"2.png", "0 first.png"}:
        (root / path).unlink()
    store, reused = prepare(rows, root, SPEC, tmp_path / "stores")
    assert not reused
    assert np.array_equal(open_images(store)[:], expected)


@pytest.mark.parametrize("other", [{"resize": "squash"}, {"height": 8, "width": 32}])
def test_rows_of_another_format_are_not_copied(
    root: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    """A store of another size or way of resizing is no source, even with as many bytes."""
    rows = rows_of(root)
    prepare(rows, root, dataclasses.replace(SPEC, **other), tmp_path / "stores")
    expected = open_images(prepare(rows, root, SPEC, tmp_path / "whole")[0])[:]
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    assert np.array_equal(open_images(store)[:], expected)


def test_building_a_store_removes_no_other_one(root: Path, tmp_path: Path) -> None:
    """Only `patchline clean` removes stores, however long nobody has opened them."""
    rows, stores = rows_of(root), tmp_path / "stores"
    old = prepare(rows.iloc[1:], root, SPEC, stores)[0]
    os.utime(old, (0, 0))
    new, _ = prepare(rows, root, SPEC, stores)
    assert set(stores_in(stores)) == {old, new}
