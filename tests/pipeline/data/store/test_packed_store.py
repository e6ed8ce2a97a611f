"""Packed images: the same pixels as decoded ones, in less space, whatever happens to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchline.pipeline.data.store import store_shards
from patchline.pipeline.data.store.packed_files import PackedImages
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from patchline.pipeline.errors import DataError
from tests.pipeline.data.store.test_prepared_store import rows_of

SPEC = StoreSpec(channels=3, height=16, width=16, resize="crop")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shard hold two images."""
    monkeypatch.setattr(store_shards, "SHARD_BYTES", 2 * 16 * 16 * 3)


def pack(rows: Any, root: Path, stores: Path, spec: StoreSpec = SPEC) -> tuple[Path, bool]:
    """Return the packed store, and whether it existed."""
    return prepare(rows, root, spec, stores, kind="packed")


@pytest.mark.parametrize(
    "spec", [SPEC, StoreSpec(1, 24, 20, "squash"), StoreSpec(3, 20, 24, "pad")]
)
def test_packed_and_decoded_images_are_equal(root: Path, spec: StoreSpec) -> None:
    """To the last pixel, however they are indexed, and whoever decodes them."""
    rows, stores = rows_of(root), Path("stores")
    expected = open_images(prepare(rows, root, spec, stores, kind="decoded")[0])
    store, _ = pack(rows, root, stores, spec)
    backwards, _ = pack(rows.iloc[::-1], Path("gone"), stores, spec)  # copied
    assert np.array_equal(open_images(backwards)[:], expected[::-1])
    for threads in (None, 1):
        images = open_images(store, threads)
        assert (images.shape, len(images)) == (expected.shape, 7)
        for key in (
            0, -1, np.int64(3), slice(None), slice(1, 6, 2), slice(5, 5), [6, 0, 0, -2],
            np.array([4, 1]), np.arange(7) % 2 == 0, np.zeros(0, np.int64),
        ):  # fmt: skip
            found, wanted = images[key], np.asarray(expected[key])
            assert found.shape == wanted.shape, key
            assert np.array_equal(found, wanted), key
        for outside in (7, -8, [0, 7]):
            with pytest.raises(IndexError):
                images[outside]


def test_images_are_packed_only_where_they_would_not_fit(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the free space decides, and the choice is told; what exists is used."""
    rows, stores = rows_of(root), Path("stores")
    monkeypatch.setattr(store_shards, "_MOST_OF_THE_DISK", 1e-15)
    store, _ = prepare(rows, root, SPEC, stores)
    assert isinstance(open_images(store), PackedImages)
    assert "the image files are packed" in caplog.text
    decoded, _ = prepare(rows, root, SPEC, stores, kind="decoded")
    assert isinstance(open_images(decoded), np.memmap)
    assert prepare(rows, Path("gone"), SPEC, stores) == (decoded, True)


@pytest.mark.parametrize("damage", ["flipped", "gone", "no shape"])
def test_a_damaged_packed_store_is_repaired(root: Path, damage: str) -> None:
    """Only the damaged shard is packed again; the other images' files need not be there."""
    rows, stores = rows_of(root), Path("stores")
    store, _ = pack(rows, root, stores)
    expected = open_images(store)[:]
    last = max(store.glob("packed-*"))
    before = last.read_bytes()
    if damage == "flipped":
        last.write_bytes(before[:-9] + bytes([before[-9] ^ 1]) + before[-8:])
    elif damage == "gone":
        last.unlink()
    else:
        (store / "packed.json").unlink()
    for path in [] if damage == "no shape" else rows["path"][:6]:
        (root / path).unlink()
    assert (pack(rows, root, stores), last.read_bytes()) == ((store, False), before)
    assert np.array_equal(open_images(store)[:], expected)
    assert pack(rows, root, stores) == (store, True)


@pytest.mark.parametrize("left", [24, 3])
def test_damage_in_use_is_told(root: Path, left: int) -> None:
    """An image that cannot be decoded any more is an error with the remedy, not a wrong picture."""
    store, _ = pack(rows_of(root), root, Path("stores"))
    shard = min(store.glob("packed-*"))
    zeros = bytes(shard.stat().st_size - 24) if left == 24 else b""
    shard.write_bytes(shard.read_bytes()[:left] + zeros)
    with pytest.raises(DataError, match=r"is damaged .* Run again"):
        open_images(store)[0]
