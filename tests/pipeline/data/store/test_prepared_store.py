"""The prepared store: the right pixels, built once, whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.data.store.channel_statistics import channel_statistics
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images, prepare
from patchline.pipeline.errors import DataError, StorageError
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import draw_photo

SPEC = StoreSpec(channels=3, height=16, width=16, resize="crop")


def stores_in(folder: Path) -> list[Path]:
    """Return all stores, complete or not."""
    return sorted(each for each in folder.iterdir() if each.name != ".locks")


def rows_of(root: Path) -> pd.DataFrame:
    """Return the usable rows of a folder."""
    names = sorted(file.name for file in root.iterdir())
    listing = ImageListing("images", root, [ListedImage(name, "a") for name in names])
    return manifests.usable(manifests.scan(listing))


@pytest.mark.parametrize(
    "spec",
    [SPEC, StoreSpec(1, 24, 20, "squash"), StoreSpec(3, 20, 24, "pad"), StoreSpec(1, 8, 8, "crop")],
)
def test_store_holds_each_image_decoded_and_resized(
    root: Path, tmp_path: Path, spec: StoreSpec
) -> None:
    """Row i of the store is image i of the manifest, decoded and resized to the last pixel."""
    rows = rows_of(root)
    store, reused = prepare(rows, root, spec, tmp_path / "stores")
    images = open_images(store)
    assert not reused
    assert images.shape == (7, spec.height, spec.width, spec.channels)
    for position, path in enumerate(rows["path"]):
        decoded = decode_image((root / path).read_bytes(), spec.channels)
        expected = resize_image(decoded, spec.height, spec.width, spec.resize)
        assert np.array_equal(images[position], expected), path


def test_store_is_read_only(root: Path, tmp_path: Path) -> None:
    """The images are mapped from disk, and nobody can change them by accident."""
    images = open_images(prepare(rows_of(root), root, SPEC, tmp_path / "stores")[0])
    assert isinstance(images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        images[0, 0, 0, 0] = 1


def test_same_data_is_prepared_once(root: Path, tmp_path: Path) -> None:
    """A second request finds the store, even when the files have gone by then."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    before = (store / "images.npy").stat().st_mtime_ns
    again, reused = prepare(rows, tmp_path / "gone", SPEC, tmp_path / "stores")
    assert (again, reused) == (store, True)
    assert (store / "images.npy").stat().st_mtime_ns == before


def test_renamed_files_and_other_labels_share_a_store(root: Path, tmp_path: Path) -> None:
    """The store depends on contents and order alone, not on names, labels or splits."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    renamed = rows.assign(path="elsewhere/" + rows["path"], label="b", split="test")
    assert prepare(renamed, root, SPEC, tmp_path / "stores") == (store, True)


@pytest.mark.parametrize(
    "change",
    [{"channels": 1}, {"height": 20}, {"width": 20}, {"height": 20, "width": 20},
     {"resize": "squash"}],
)  # fmt: skip
def test_another_size_has_a_store_of_its_own(
    root: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Another size, number of channels or way of resizing never reuses a store."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    other, reused = prepare(rows, root, dataclasses.replace(SPEC, **change), tmp_path / "stores")
    assert other != store
    assert not reused


def test_height_and_width_are_not_confused(root: Path, tmp_path: Path) -> None:
    """A store of 16x24 pixels is not that of 24x16 pixels."""
    rows = rows_of(root)
    lying, standing = (
        prepare(rows, root, StoreSpec(3, height, width, "crop"), tmp_path / "stores")[0]
        for height, width in ((16, 24), (24, 16))
    )
    assert lying != standing


def test_other_content_or_order_has_a_store_of_its_own(root: Path, tmp_path: Path) -> None:
    """A changed image, a missing one and another order each give another store."""
    rows = rows_of(root)
    stores = {prepare(rows, root, SPEC, tmp_path / "stores")[0]}
    stores.add(prepare(rows.iloc[1:], root, SPEC, tmp_path / "stores")[0])
    stores.add(prepare(rows.iloc[::-1], root, SPEC, tmp_path / "stores")[0])
    Image.fromarray(draw_photo(3, 77)).save(root / "0.png")
    stores.add(prepare(rows_of(root), root, SPEC, tmp_path / "stores")[0])
    assert len(stores) == 4


def test_file_that_changed_since_the_scan_is_an_error(root: Path, tmp_path: Path) -> None:
    """A file whose content is not what the manifest says is named, and no store is left."""
    rows = rows_of(root)
    Image.fromarray(draw_photo(3, 77)).save(root / "2.png")
    with pytest.raises(DataError, match=r"2\.png changed"):
        prepare(rows, root, SPEC, tmp_path / "stores")
    assert stores_in(tmp_path / "stores") == []


def test_file_that_has_gone_since_the_scan_is_an_error(root: Path, tmp_path: Path) -> None:
    """A file that was deleted after the scan is named in one sentence, and no store is left."""
    rows = rows_of(root)
    (root / "2.png").unlink()
    with pytest.raises(DataError, match=r"2\.png"):
        prepare(rows, root, SPEC, tmp_path / "stores")
    assert stores_in(tmp_path / "stores") == []


def test_failure_leaves_nothing_and_the_next_try_succeeds(root: Path, tmp_path: Path) -> None:
    """A full disk in the middle leaves nothing half made; with space again, the store is made."""
    rows = rows_of(root)

    def fail_late(done: int, _total: int) -> None:
        if done == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="no space left"):
        prepare(rows, root, SPEC, tmp_path / "stores", fail_late)
    assert stores_in(tmp_path / "stores") == []
    store, reused = prepare(rows, root, SPEC, tmp_path / "stores")
    assert not reused
    assert len(open_images(store)) == 7


def test_leftovers_of_a_killed_process_are_no_store(root: Path, tmp_path: Path) -> None:
    """What a killed process left half made is never opened as a store."""
    rows = rows_of(root)
    left = tmp_path / "stores" / ".building-killed"
    left.mkdir(parents=True)
    (left / "images.npy").write_bytes(b"half")
    store, reused = prepare(rows, root, SPEC, tmp_path / "stores")
    assert not reused
    assert store != left


def test_progress_counts_every_image(root: Path, tmp_path: Path) -> None:
    """The progress rises by one for each image, up to all of them."""
    seen: list[tuple[int, int]] = []
    prepare(rows_of(root), root, SPEC, tmp_path / "s", lambda *now: seen.append(now))
    assert seen == [(done, 7) for done in range(1, 8)]


@settings(max_examples=40, deadline=None)
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


def test_channel_statistics_need_little_memory(tmp_path: Path) -> None:
    """Of a store of 31 MB, a few are in memory; the sums are exact, also of many images."""
    drawn = np.random.default_rng(0).integers(0, 256, (160, 160, 3), dtype=np.uint8)
    images = np.lib.format.open_memmap(
        tmp_path / "images.npy", mode="w+", dtype=np.uint8, shape=(400, *drawn.shape)
    )
    images[:] = drawn
    tracemalloc.start()
    try:
        mean, std = channel_statistics(images, np.arange(400))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20
    chosen = drawn.astype(np.float64) / 255
    assert mean == tuple(chosen.mean(axis=(0, 1)).round(6))
    assert std == tuple(chosen.std(axis=(0, 1)).round(6))


def test_channel_without_contrast_has_a_deviation_above_zero() -> None:
    """A channel of one value can still be divided by its deviation."""
    images = np.full((2, 4, 4, 3), 7, np.uint8)
    mean, std = channel_statistics(images, np.array([0, 1]))
    assert mean == pytest.approx([7 / 255] * 3, abs=1e-6)
    assert min(std) > 0


@pytest.mark.parametrize("damage", ["flipped", "cut", "no digests", "no images"])
def test_a_damaged_store_is_noticed_and_decoded_again(
    root: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One changed byte, a file cut short or missing: the pixels are decoded again, and it says."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    images = store / "images.npy"
    before = images.read_bytes()
    if damage == "no digests":
        (store / "images.pieces.jsonl").unlink()
    elif damage == "no images":
        images.unlink()
    else:
        images.write_bytes(before[:-1] + (b"" if damage == "cut" else bytes([before[-1] ^ 1])))
    reading = open_images(store) if damage == "no digests" else None
    again, reused = prepare(rows, root, SPEC, tmp_path / "stores")
    assert (again, reused) == (store, False)
    assert images.read_bytes() == before
    assert "1 of 1 pieces of the decoded images are damaged" in caplog.text
    assert prepare(rows, root, SPEC, tmp_path / "stores") == (store, True)
    assert reading is None or len(reading) == 7  # whoever has it open reads on


def test_fresh_decodes_whatever_exists(root: Path, tmp_path: Path) -> None:
    """A fresh run does not look at the store that is there."""
    rows = rows_of(root)
    store, _ = prepare(rows, root, SPEC, tmp_path / "stores")
    before = (store / "images.npy").stat().st_ino
    assert prepare(rows, root, SPEC, tmp_path / "stores", fresh=True) == (store, False)
    assert (store / "images.npy").stat().st_ino != before
