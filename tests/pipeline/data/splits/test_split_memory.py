"""Splits under growth: an image that was assigned never moves, on any of several machines."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import content_numbers
from patchline.pipeline.data.splits import split_memory
from patchline.pipeline.data.splits.split import collect_assignments
from patchline.pipeline.data.splits.split_memory import SplitMemory
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.object_store import ConflictError, FolderStore, ObjectStore
from patchline.pipeline.workspace.shared_files import SharedFile, SharedFiles
from patchline.pipeline.workspace.tracking import tracked_run
from tests.conftest import write_photos
from tests.pipeline.data.splits.made_tables import assigned, by_content, table
from tests.pipeline.data.test_ingestion import config_of

SHARES = {"test": 0.15, "validation": 0.15}
Image_ = tuple[str, str, str, str]
"""Label, content, pixels, group."""


def rows_of(images: list[Image_]) -> pd.DataFrame:
    """Return a manifest of good images without splits."""
    labels, contents, pixels, groups = zip(*images, strict=True)
    return table(labels, contents=contents, pixels=pixels, group=groups)


class Growing:
    """A data set that grows: new images, re-encoded copies, copies that lie in another group."""

    def __init__(self, seed: int, groups: int) -> None:
        self.random, self.groups = random.Random(seed), groups  # noqa: S311 - no secret
        self.images = [(label, f"{label}{n}", f"{label}{n}", "") for label in "abc"
                       for n in range(3)]  # fmt: skip

    def grow(self) -> None:
        """Add images to the classes."""
        for label in "abc" * self.random.randint(1, 8):
            group = f"g{self.random.randrange(self.groups)}" * (self.random.random() < 0.5)
            file = pixels = str(self.random.random())
            if self.random.random() < 0.3:
                pixels = self.random.choice(self.images)[2]
            self.images.append((label, file, pixels, group))


def several(manifest: pd.DataFrame, by: pd.Series[Any]) -> set[Any]:
    """Return what lies in more than one split."""
    counts = manifest["split"].groupby(by).nunique()
    return set(counts.index[counts > 1])


@pytest.mark.parametrize("groups", [2, 200])
def test_nobody_moves_however_the_data_grow(groups: int) -> None:
    """Of data sets that grow three times no image moves; only groups may be torn, and noted."""
    joined = 0
    for seed in range(2):
        data, remembered = Growing(seed, groups), None
        before: dict[str, str] = {}
        torn: set[str] = set()
        for _ in range(4):
            manifest, notes = assigned(rows_of(data.images), remembered=remembered)
            remembered, now = collect_assignments(manifest), by_content(manifest)
            assert {key: now[key] for key in before} == before
            assert not several(manifest, content_numbers(manifest)[0])
            grouped = manifest[manifest["group"] != ""]
            apart = several(grouped, grouped["group"])
            if apart - torn:
                joined += 1
                assert any("already in different splits" in note for note in notes)
            if not before:
                assert not apart
                assert (manifest.groupby("label")["split"].nunique() == 3).all()
            before, torn = now, apart
            data.grow()
    assert joined > 0 or groups > 2


def test_class_that_loses_its_test_image_says_so() -> None:
    """What was trained on is not tested on: the gap is noted, and the next new image fills it."""
    before, _ = assigned(table(["a", "b"] * 8))
    remembered = collect_assignments(before)
    left = before[(before["label"] == "b") | (before["split"] != "test")].reset_index(drop=True)
    kept, left = left["split"], left.assign(split="")
    after, notes = assigned(left, remembered=remembered)
    assert after["split"].equals(kept)
    assert any(note.startswith("1 class without test images, because images") for note in notes)
    more = pd.concat([left, table(["a"], contents=["new"])], ignore_index=True)
    assert assigned(more, remembered=remembered)[0]["split"].iloc[-1] == "test"
    with pytest.raises(DataError, match="test split is empty"):
        assigned(after[after["split"] != "test"].assign(split=""), remembered=remembered)


def test_runs_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Four that assign different images at once leave all of them remembered."""

    def run(number: int) -> None:
        images = [("a", f"{number} {n}", f"{number} {n}", "") for n in range(10)]
        with split_memory.open_memory(tmp_path, SHARES, 0, list) as memory:
            memory.remember(rows_of(images).assign(split="test"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    with split_memory.open_memory(tmp_path, SHARES, 0, list) as memory:
        assert len(memory.table) == 80
    with split_memory.open_memory(tmp_path, SHARES, 1, list) as memory:
        assert memory.table.empty


def test_damaged_memory_is_not_forgotten_in_silence(photos: Path) -> None:
    """A file that cannot be read ends the run with its name; a plan alone leaves none."""
    work = photos.parent / "work"
    ingest(config_of(photos), work, remember=False)
    assert not [*work.glob("splits/*.parquet"), *work.glob("ingestions/*")]
    ingest(config_of(photos), work)
    [file] = (work / "splits").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=f"{file.name}, which records .* is damaged"):
        ingest(config_of(photos), work)


def splits_of(data: IngestedData) -> dict[str, str]:
    """Return the split of each file by its name without a suffix."""
    manifest = manifests.load(data.manifest_file)
    names = manifest["path"].str.rpartition(".")[0]
    assert not several(manifest, content_numbers(manifest)[0])
    assert not several(manifest, names)
    return dict(zip(names, manifest["split"], strict=True))


def test_same_pixels_in_another_format_are_the_same_image() -> None:
    """BMP copies of PNG files lie where these lie, from the start or added later, and all stay."""
    photos = write_photos(Path("photos"), images=4)
    work = photos.parent / "work"
    before = splits_of(ingest(config_of(photos), work))
    for file in list(photos.rglob("*.png")):
        Image.open(file).save(file.with_suffix(".bmp"))
    assert splits_of(ingest(config_of(photos), work)) == before
    splits_of(ingest(config_of(photos), photos.parent / "fresh"))
    write_photos(photos, images=6)
    after = splits_of(ingest(config_of(photos), work))
    assert {name: after[name] for name in before} == before


@pytest.mark.usefixtures("own_store")
def test_data_of_the_last_run_keep_their_split(tmp_path: Path) -> None:
    """In a new workspace, the manifest of the last run in the store decides."""
    photos = write_photos(tmp_path / "photos", classes=2, images=4)
    config = config_of(photos)
    first = ingest(config, tmp_path / "first")
    rows = manifests.load(first.manifest_file)
    rows["split"] = rows["split"].replace({"test": "validation", "validation": "test"})
    manifests.save(rows, first.manifest_file)
    with tracked_run.open_owned_run(
        config.model_copy(update={"name": "photos"}), tmp_path, {}
    ) as run:
        tracked_run.log_data(run, "photos", first.fingerprint, first.manifest_file)
    write_photos(photos, classes=2, images=12)
    after = by_content(manifests.load(ingest(config, tmp_path / "new").manifest_file))
    before = by_content(rows)
    assert {key: after[key] for key in before} == before


NAME = "splits/seed-0.parquet"


def images(first: int, count: int) -> pd.DataFrame:
    """Return a manifest of images by number."""
    numbers = range(first, first + count)
    return table(["ab"[n % 2] for n in numbers], contents=[f"file {n}" for n in numbers])


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """Return an empty store beside the folders of two machines."""
    for name in ("store", "a", "b"):
        (tmp_path / name).mkdir()
    return FolderStore(tmp_path / "store")


def assign_on_machine(store: ObjectStore, folder: Path, manifest: pd.DataFrame) -> pd.DataFrame:
    """Assign images as a run on a machine of its own does; return them with their splits."""
    file = folder / "seed-0.parquet"
    while True:
        shared = SharedFile(SharedFiles(store), NAME)
        shared.fetch(file)
        memory = SplitMemory(file, shared=shared)
        found, _ = assigned(manifest, remembered=SplitMemory(file).table)
        try:
            memory.remember(found)
        except ConflictError:
            continue
        return found


def test_many_machines_at_once_lose_nothing(store: FolderStore) -> None:
    """Each has assigned other images and common ones: all are remembered, none has two splits."""

    def work(number: int) -> pd.DataFrame:
        folder = Path(f"machine {number}")
        folder.mkdir()
        return assign_on_machine(store, folder, images(20 * number, 40))

    with ThreadPoolExecutor(3) as pool:
        together = pd.concat(pool.map(work, range(3)))
    assert together.groupby("sha256")["split"].nunique().max() == 1
    assert by_content(assign_on_machine(store, Path("a"), images(0, 80))) == by_content(together)


def test_a_damaged_memory_is_never_begun_again(store: FolderStore) -> None:
    """Images could move to another split; a machine that still has the file repairs the store."""
    assign_on_machine(store, Path("a"), images(0, 40))
    for file in Path("store/files").rglob("*"):
        if file.is_file():
            file.write_bytes(b"?" * file.stat().st_size)
    with pytest.raises(DataError, match=rf"{NAME} in .* cannot be used: the object files/"):
        assign_on_machine(store, Path("b"), images(0, 40))
    assign_on_machine(store, Path("a"), images(0, 40))
    assign_on_machine(store, Path("b"), images(0, 40))
    [object_file] = Path("store/names/splits").iterdir()
    object_file.write_text("{")
    with pytest.raises(DataError, match="cannot be used"):
        assign_on_machine(store, Path("b"), images(0, 40))
