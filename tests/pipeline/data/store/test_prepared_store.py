"""The prepared store: the right pixels, built once, whole or not at all, whoever else builds it."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from patchline.pipeline.data.manifests.scanning import scan
from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.channel_statistics import channel_statistics
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from patchline.pipeline.errors import DataError, StorageError
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import draw_photo
from tests.patience import patient

SPEC = StoreSpec(channels=3, height=16, width=16, resize="crop")


def stores_in(folder: Path) -> list[Path]:
    """Return all stores, complete or not."""
    return sorted(each for each in folder.iterdir() if each.name != ".locks")


def rows_of(root: Path) -> pd.DataFrame:
    """Return the usable rows of a folder."""
    names = sorted(file.name for file in root.iterdir())
    listing = ImageListing("images", root, [ListedImage(name, "a") for name in names])
    return scan(listing)


@pytest.mark.parametrize(
    "spec",
    [SPEC, StoreSpec(1, 24, 20, "squash"), StoreSpec(3, 20, 24, "pad")],
)
def test_store_holds_each_image_decoded_and_resized(root: Path, spec: StoreSpec) -> None:
    """Row i of the store is image i of the manifest, decoded and resized to the last pixel."""
    rows = rows_of(root)
    store, reused = prepare(rows, root, spec, Path("stores"))
    images = open_images(store)
    assert not reused
    assert isinstance(images, np.memmap)
    assert images.shape == (7, spec.height, spec.width, spec.channels)
    for position, path in enumerate(rows["path"]):
        decoded = decode_image((root / path).read_bytes(), spec.channels)
        expected = resize_image(decoded, spec.height, spec.width, spec.resize)
        assert np.array_equal(images[position], expected), path


def test_a_store_depends_on_format_contents_and_order_alone(root: Path) -> None:
    """Not on names, labels or splits, nor on files that have gone; a fresh run decodes again."""
    rows, made = rows_of(root), Path("stores")
    others = [
        StoreSpec(1, 16, 16, "crop"), StoreSpec(3, 16, 24, "crop"), StoreSpec(3, 24, 16, "crop"),
        StoreSpec(3, 16, 16, "squash"),
    ]  # fmt: skip
    stores = [prepare(rows, root, spec, made) for spec in (SPEC, *others)]
    stores += [prepare(part, root, SPEC, made) for part in (rows.iloc[1:], rows.iloc[::-1])]
    Image.fromarray(draw_photo(3, 77)).save(root / "0.png")
    stores.append(prepare(rows_of(root), root, SPEC, made))
    assert not any(reused for _, reused in stores)
    assert len({store for store, _ in stores}) == 8
    renamed = rows.assign(path="elsewhere/" + rows["path"], label="b", split="test")
    assert prepare(renamed, Path("gone"), SPEC, made) == (stores[0][0], True)
    last, _ = stores[-1]
    before = (last / "images.npy").stat().st_ino
    assert prepare(rows_of(root), root, SPEC, made, fresh=True) == (last, False)
    assert (last / "images.npy").stat().st_ino != before


@pytest.mark.parametrize(("change", "fewest"), [("changed", 99), ("gone", 99), ("changed", 1)])
def test_file_that_changed_since_the_scan_is_an_error(root: Path, change: str, fewest: int) -> None:
    """A file whose content is not what the manifest says is named, and no store is left."""
    rows = rows_of(root)
    (root / "2.png").unlink()
    if change == "changed":
        Image.fromarray(draw_photo(3, 77)).save(root / "2.png")
    with pytest.raises(DataError, match=r"2\.png"):
        prepare(rows, root, SPEC, Path("stores"), fewest=fewest)
    assert stores_in(Path("stores")) == []


def test_failure_leaves_nothing(root: Path) -> None:
    """A full disk in the middle leaves nothing half made."""

    def fail_late(done: int, _total: int) -> None:
        if done == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="no space left"):
        prepare(rows_of(root), root, SPEC, Path("stores"), fail_late)
    assert stores_in(Path("stores")) == []


@given(
    images=arrays.arrays(
        np.uint8,
        st.tuples(
            st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 3])
        ),
    ),
    piece=st.integers(1, 3000),
    data=st.data(),
)
def test_channel_statistics_equal_numpys(
    images: np.ndarray[Any, np.dtype[np.uint8]], piece: int, data: st.DataObject
) -> None:
    """Mean and deviation equal numpy's over the chosen rows, whatever the pieces."""
    rows = data.draw(st.lists(st.integers(0, len(images) - 1), min_size=1, unique=True))
    mean, std = channel_statistics(images, np.array(rows), piece)
    chosen = images[rows].astype(np.float64) / 255
    assert mean == pytest.approx(chosen.mean(axis=(0, 1, 2)), abs=2e-6)
    assert std == pytest.approx(np.maximum(chosen.std(axis=(0, 1, 2)), 1 / 255), abs=2e-6)


@pytest.mark.parametrize("damage", ["flipped", "no digests", "no images"])
def test_a_damaged_store_is_noticed_and_decoded_again(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One changed byte, a file cut short or missing: the pixels are decoded again, and it says."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, Path("stores"))
    images = store / "images.npy"
    before = images.read_bytes()
    if damage == "no digests":
        (store / "images.pieces.jsonl").unlink()
    elif damage == "no images":
        images.unlink()
    else:
        images.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    reading = open_images(store) if damage == "no digests" else None
    again, reused = prepare(rows, root, SPEC, Path("stores"))
    assert ((again, reused), images.read_bytes()) == ((store, False), before)
    assert "1 of 1 pieces of the decoded images are damaged" in caplog.text
    assert prepare(rows, root, SPEC, Path("stores")) == (store, True)
    assert reading is None or len(reading) == 7  # whoever has it open reads on


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_build_continues_while_another_builder_waits(
    root: Path, tmp_path: Path
) -> None:
    """After SIGKILL, only shards that are not whole are decoded; of two at once, one decodes."""
    stores, table, rows = tmp_path / "stores", tmp_path / "rows.parquet", rows_of(root)
    rows.to_parquet(table)
    expected = open_images(prepare(rows, root, SPEC, tmp_path / "whole")[0])[:]
    with start_builder(root, stores, table, 5) as builder:
        builder.communicate(timeout=patient(60))
    assert builder.returncode == -signal.SIGKILL
    (left,) = stores_in(stores)
    assert left.name.startswith(".building-")
    for path in rows["path"][:4]:  # of the first two shards
        (root / path).unlink()
    seen, waiting = list[int](), list[subprocess.Popen[str]]()

    def on_progress(done: int, _total: int) -> None:
        seen.append(done)
        if not waiting:  # and this process holds the lock
            waiting.append(start_builder(root, stores, table, -1))
            assert waiting[0].stderr
            assert "waiting for it" in waiting[0].stderr.readline()

    store, reused = prepare(rows, root, SPEC, stores, on_progress)
    assert (seen, reused) == ([5, 6, 7], False)
    assert waiting[0].communicate(timeout=patient(60))[0] == "True\n"
    assert stores_in(stores) == [store]
    assert np.array_equal(open_images(store)[:], expected)


def test_only_new_and_changed_files_are_decoded(root: Path) -> None:
    """Rows of an earlier store are copied wherever they are now; the rest is decoded."""
    prepare(rows_of(root), root, SPEC, Path("stores"))
    Image.fromarray(draw_photo(3, 77)).save(root / "2.png")
    Image.fromarray(draw_photo(2, 78)).save(root / "0 first.png")
    (root / "1.png").unlink()
    rows = rows_of(root)
    expected = open_images(prepare(rows, root, SPEC, Path("whole"))[0])[:]
    for path in set(rows["path"]) - {"2.png", "0 first.png"}:
        (root / path).unlink()
    store, reused = prepare(rows, root, SPEC, Path("stores"))
    assert not reused
    assert np.array_equal(open_images(store)[:], expected)
