"""The shards of the prepared store: damage, interruptions, two builders, and what is copied."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from tests.conftest import draw_photo
from tests.patience import patient
from tests.pipeline.data.store.test_prepared_store import rows_of, stores_in

SPEC = StoreSpec(channels=3, height=16, width=16, resize="crop")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shard hold two images: seven images are in four shards."""
    monkeypatch.setattr(store_shards, "SHARD_BYTES", 2 * 16 * 16 * 3)


_BUILDER = """
import os, signal, sys
from pathlib import Path
import pandas as pd
from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.prepared_store import StoreSpec, prepare

root, stores, killed_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store_shards.SHARD_BYTES = 2 * 16 * 16 * 3

def on_progress(done, total):
    if done == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)

rows = pd.read_parquet(sys.argv[4])
print(prepare(rows, root, StoreSpec(3, 16, 16, "crop"), stores, on_progress)[1], flush=True)
"""


def start_builder(root: Path, stores: Path, rows: Path, killed_at: int) -> subprocess.Popen[str]:
    """Start a process that builds a store; it kills itself after as many images, with -1 never."""
    arguments = [str(each) for each in (root, stores, killed_at, rows)]
    return subprocess.Popen(
        [sys.executable, "-c", _BUILDER, *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


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


def test_only_the_damaged_shard_is_decoded_again(root: Path, tmp_path: Path) -> None:
    """The other shards need no file."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    images = store / "images.npy"
    before = images.read_bytes()
    images.write_bytes(before[:-5] + bytes([before[-5] ^ 1]) + before[-4:])
    for path in rows["path"][:6]:  # all but the last shard's
        (root / path).unlink()
    assert prepare(rows, root, SPEC, tmp_path / "stores") == (store, False)
    assert images.read_bytes() == before
    assert prepare(rows, root, SPEC, tmp_path / "stores") == (store, True)


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


def test_rows_of_another_format_are_not_copied(root: Path, tmp_path: Path) -> None:
    """A store of another size or way of resizing is no source, even with as many bytes."""
    rows = rows_of(root)
    for other in (StoreSpec(3, 16, 16, "squash"), StoreSpec(3, 8, 32, "crop")):
        prepare(rows, root, other, tmp_path / "stores")
    expected = open_images(prepare(rows, root, SPEC, tmp_path / "whole")[0])[:]
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    assert np.array_equal(open_images(store)[:], expected)
