"""A store on an object store: the images of a local one, read in pages, whatever fails."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.data.batches.batch_order import BatchOrder, ShuffleWindows, StreamedOrder
from patchline.pipeline.data.store import store_builds
from patchline.pipeline.data.store.opened_images import JoinedImages, open_stores
from patchline.pipeline.data.store.prepared_store import (
    StoreKind,
    StoreSpec,
    is_complete,
    is_streamed,
    open_images,
    prepare,
)
from patchline.pipeline.data.store.store_builds import StreamedBuild
from patchline.pipeline.data.store.streamed_images import KeptImages, PagesFolder, StreamedImages
from patchline.pipeline.data.store.streamed_records import StreamedRecords
from patchline.pipeline.errors import ConfigError, DataError, StorageError
from patchline.pipeline.training.training_data import DividedOrder
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory.cleaning import delete_objects
from patchline.pipeline.workspace.workspace import CACHE_FILE
from patchline.plugins.stores import objects as remote_store
from tests.conftest import write_photos
from tests.object_server import ObjectServer, faulty_connection
from tests.pipeline.workspace.machines import machine

SPEC = StoreSpec(channels=3, height=16, width=16, resize="crop")
IMAGE = 16 * 16 * 3
SPLITS = ("train", "train", "validation", "train", "test", "train")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Return a manifest of 240 photos; its attribute `root` is their folder."""
    root = write_photos(tmp_path_factory.mktemp("photos") / "data", classes=4, images=60)
    files = sorted(root.rglob("*.png"))
    table = pd.DataFrame({
        "path": [file.relative_to(root).as_posix() for file in files],
        "sha256": [digest_of(file).sha256 for file in files],
        "split": [SPLITS[number % len(SPLITS)] for number in range(len(files))],
    })  # fmt: skip
    table.attrs["root"] = root
    return table


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shard hold 20 images, and a page 16."""
    monkeypatch.setattr(store_builds, "SHARD_BYTES", 20 * IMAGE)
    monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", "100kB")


@pytest.fixture
def team(tmp_path: Path) -> Iterator[None]:
    """Work in a workspace that is a folder."""
    (tmp_path / "team").mkdir()
    with machine("a", (tmp_path / "team").as_uri()):
        yield


@pytest.fixture
def remote_team(bucket: str) -> Iterator[str]:
    """Work in a workspace on the server."""
    with machine("a", f"s3://{bucket}/team"):
        yield f"s3://{bucket}/team"


def stored(rows: pd.DataFrame, kind: StoreKind = "auto", *, streamed: bool = True) -> Path:
    """Return a store of the photos."""
    shared, stores = (
        chosen.find_shared_files() if streamed else None,
        WORKSPACE.resolve() / "prepared",
    )
    return prepare(rows, rows.attrs["root"], SPEC, stores, kind=kind, shared=shared)[0]


def order_of(rows: pd.DataFrame, windows: int | None = 4, first_step: int = 0) -> BatchOrder:
    """Return batches of 7 training images, in windows of blocks of 5 rows."""
    own = np.flatnonzero(rows["split"] == "train")
    return BatchOrder(
        own, 7, 3, first_step, ShuffleWindows(windows, len(rows), 5) if windows else None
    )


@pytest.mark.parametrize("kind", ["decoded", "packed"])
def test_the_images_are_those_of_a_local_store(
    remote_team: str, rows: pd.DataFrame, kind: StoreKind
) -> None:
    """However they are indexed, on this machine and on another one."""
    store = stored(rows, kind)
    assert is_streamed(store)
    assert not [each for each in store.parent.rglob("*") if each.stat().st_size > 10_000]
    expected = open_images(stored(rows, streamed=False))
    images = open_images(store)
    assert (images.shape, len(images)) == (expected.shape, 240)
    for key in (-1, slice(1, 60, 7), slice(5, 5), [6, 0, 0, -2], np.arange(len(rows)) % 2 == 0):
        assert np.array_equal(images[key], np.asarray(expected[key])), key
    with pytest.raises(IndexError):
        images[240]
    assert stored(rows, kind) == store
    with machine("b", remote_team):
        assert np.array_equal(open_images(stored(rows, kind))[:], expected[:])


@pytest.mark.parametrize("windows", [4, None])
@pytest.mark.usefixtures("team")
def test_the_batches_are_those_of_the_order(rows: pd.DataFrame, windows: int | None) -> None:
    """Each is on this machine before it is yielded, for any number of ranks, from any step."""
    images = open_images(stored(rows))
    assert isinstance(images, StreamedImages)
    for rank, ranks, first_step in ((0, 1, 0), (2, 3, 30)):
        pages, whole = PagesFolder(), order_of(rows, windows, first_step)
        order = DividedOrder(whole, rank, ranks, mixing=False)
        expected = DividedOrder(order_of(rows, windows, first_step), rank, ranks, mixing=False)
        local = open_stores([images.records.folder], pages=pages.folder)
        assert isinstance(local, StreamedImages)
        streamed = StreamedOrder(order, whole, images, pages, lambda: 10_000)
        for batch, wanted in itertools.islice(zip(streamed, expected, strict=False), 12):
            assert batch == wanted
            own = np.array([draw % 240 for _, draw in batch])
            assert np.array_equal(local[own], images[own])
            held = [file.stat().st_size for file in pages.folder.glob("page-*/records.bin")]
            assert sum(held) <= 3 * pages.page_bytes
        assert local.records.bytes_read == 0
        pages.close()


@pytest.mark.parametrize(
    ("limit", "windows", "most_requests"), [("100kB", 12, 200), ("1MB", 4, 120)]
)
@pytest.mark.usefixtures("team")
def test_an_epoch_reads_the_data_once(
    rows: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    windows: int,
    most_requests: int,
) -> None:
    """At most 1.05 times the bytes of the training images; in windows, several for a request."""
    monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", limit)
    images, pages = open_images(stored(rows)), PagesFolder()
    assert isinstance(images, StreamedImages)
    requests = list[int]()
    read_content = images.records._workspace.read_content

    def counted(key: str, start: int, stop: int) -> Any:
        requests.append(stop - start)
        return read_content(key, start, stop)

    monkeypatch.setattr(images.records._workspace, "read_content", counted)
    order = order_of(rows, windows)
    steps = 2 * order.steps_per_epoch
    streamed = StreamedOrder(order, order, images, pages, lambda: steps)
    assert len(list(itertools.islice(streamed, steps))) == steps
    needed = 2 * 160 * IMAGE
    assert needed <= images.records.bytes_read == sum(requests) <= 1.05 * needed
    assert len(requests) <= most_requests
    pages.close()


@pytest.mark.usefixtures("team")
def test_images_to_validate_on_stay(rows: pd.DataFrame) -> None:
    """They are read once, in the order of their digests in few requests, as far as they fit."""
    images = open_images(stored(rows))
    assert isinstance(images, StreamedImages)
    pages, table = PagesFolder(), rows[rows["split"] == "validation"]
    own = table.index.to_numpy()[np.lexsort((table["path"], table["sha256"]))]
    images.kept = KeptImages(own, images.records, pages.folder / "kept", 30 * IMAGE)
    expected = images[own].copy()
    assert images.records.bytes_read == 40 * IMAGE
    assert np.array_equal(images[own], expected)
    assert images.records.bytes_read == 50 * IMAGE
    pages.close()


@pytest.mark.parametrize("splits", ["same", "other"])
@pytest.mark.usefixtures("team")
def test_a_build_that_was_killed_continues(
    rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, splits: str
) -> None:
    """Shards that are on the object store are not decoded again; each row keeps its own image.

    With other splits, the store has the same name, but its shards hold other images.
    """
    decoded = list[int]()
    image = StreamedBuild._image

    def counted(self: StreamedBuild, row: int) -> bytes:
        decoded.append(row)
        if len(decoded) == 100:
            raise KeyboardInterrupt
        return image(self, row)

    monkeypatch.setattr(StreamedBuild, "_image", counted)
    with pytest.raises(KeyboardInterrupt):
        stored(rows)
    if splits == "other":
        rows = rows.assign(split=np.roll(rows["split"], 1))
    store = stored(rows)
    assert len(decoded) <= 240 + 40 or splits == "other"
    assert np.array_equal(open_images(store)[:], open_images(stored(rows, streamed=False))[:])


@pytest.mark.usefixtures("team")
def test_a_damaged_shard_is_noticed_and_made_again(rows: pd.DataFrame) -> None:
    """The error says what to do, and the next build repairs it."""
    store = stored(rows)
    shared = chosen.find_shared_files()
    assert shared is not None
    key = next(info.key for info in shared.store.list("files/") if info.bytes == 20 * IMAGE)
    file = Path(shared.uri.removeprefix("file://")) / key
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert is_complete(store)
    with pytest.raises(DataError, match=r"does not match its checksums. Run again"):
        open_images(store)[:]
    assert not is_complete(store)
    assert is_complete(stored(rows))
    shared.store.delete(key)
    with pytest.raises(DataError, match=r"is missing. Run again"):
        open_images(store)[:]
    assert np.array_equal(
        open_images(stored(rows))[:], open_images(stored(rows, streamed=False))[:]
    )


@pytest.mark.usefixtures("remote_team")
def test_a_store_that_stays_away_is_one_sentence(
    rows: pd.DataFrame, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches that were fetched are still yielded, then the error; what passes is not said."""
    store, whole = stored(rows), order_of(rows)
    monkeypatch.setattr(remote_store, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(chosen, "_opened", {})
    with faulty_connection(objects) as connection:
        for name, value in connection.environment.items():
            monkeypatch.setenv(name, value)
        pages = PagesFolder()
        batches = iter(StreamedOrder(whole, whole, open_images(store), pages, lambda: 10_000))
        connection.fault, connection.count, connection.methods = "cut_short", 1, ("GET",)
        found = list(itertools.islice(batches, 3))
        connection.fault, connection.count = "hang_up", 10_000
        with pytest.raises(StorageError, match=r"cannot be reached at http.*can be resumed"):
            found.extend(batches)
        assert found == list(itertools.islice(order_of(rows), len(found)))
        assert len(found) < whole.steps_per_epoch
        pages.close()


@pytest.mark.usefixtures("team")
def test_without_the_workspace_it_is_said(rows: pd.DataFrame) -> None:
    """A folder alone does not have the images."""
    records = StreamedRecords(stored(rows))
    (WORKSPACE / CACHE_FILE).unlink()
    with pytest.raises(ConfigError, match=r"Give its address with --workspace"):
        records.read(np.array([1]))


@pytest.mark.usefixtures("team")
def test_pages_of_a_killed_process_go() -> None:
    """The next training removes them; those of a living one stay."""
    living, killed = PagesFolder(), PagesFolder()
    assert killed._lock is not None
    killed._lock.release()
    another = PagesFolder()
    assert living.folder.exists()
    assert not killed.folder.exists()
    living.close()
    another.close()


@pytest.mark.usefixtures("team")
def test_shards_that_are_still_sent_are_not_cleaned(
    rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago the first was sent; if one is missing all the same, a sentence says so."""
    shared = chosen.find_shared_files()
    assert shared is not None
    send, seen, lost = StreamedBuild._send, list[int](), True

    def sent(self: StreamedBuild, *shard: Any) -> None:
        send(self, *shard)
        old = time.time() - 2 * 86400
        contents = [each.key for each in shared.store.list("files/")]
        for key in contents:
            os.utime(Path(shared.uri.removeprefix("file://")) / key, (old, old))
        seen.append(len(list(delete_objects(shared, contents))))
        if lost:
            shared.store.delete(contents[0])

    monkeypatch.setattr(StreamedBuild, "_send", sent)
    with pytest.raises(StorageError, match="Run again: only what is missing"):
        stored(rows)
    lost = False
    assert is_complete(stored(rows))
    assert set(seen) == {0}


@pytest.mark.usefixtures("team")
def test_several_stores_are_read_together(rows: pd.DataFrame) -> None:
    """Unlabelled images are in a store of their own; its images follow those of the first."""
    few = rows.iloc[:50].copy()
    few.attrs = rows.attrs
    stores = [stored(rows), stored(few, "packed")]
    images, pages = open_stores(stores), PagesFolder()
    assert isinstance(images, JoinedImages)
    local = open_stores(stores, pages=pages.folder)
    order = BatchOrder(np.arange(290, dtype=np.int64), 8, 0, 0)
    for batch in itertools.islice(StreamedOrder(order, order, images, pages, lambda: 40), 40):
        own = np.array([draw for _, draw in batch])
        assert np.array_equal(local[own], images[own])
    pages.close()
