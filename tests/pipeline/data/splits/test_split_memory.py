"""Splits under growth: an image that was assigned never moves, and copies stay together."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest, scan
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import content_numbers
from patchline.pipeline.data.splits import split, split_memory
from patchline.pipeline.data.splits.split_memory import SplitMemory
from patchline.pipeline.errors import DataError
from patchline.pipeline.tracking import tracked_run
from tests.conftest import write_photos
from tests.pipeline.data.test_ingestion import config_of

FRACTIONS: dict[str, Any] = {"validation_fraction": 0.15, "test_fraction": 0.15}
SHARES = {"test": 0.15, "validation": 0.15}
Image_ = tuple[str, str, str, str]
"""Label, file digest, pixel digest, group."""


def digest(text: str) -> str:
    """Return a file digest."""
    return hashlib.sha256(text.encode()).hexdigest()


def table(images: list[Image_]) -> pd.DataFrame:
    """Return a manifest of good images without splits."""
    found = pd.DataFrame(images, columns=["label", "sha256", "pixels", "group"])
    return found.assign(path=[f"{n}.png" for n in range(len(images))], split="", status="ok")


def assigned(
    manifest: pd.DataFrame, memory: SplitMemory, seed: int = 0
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest with splits, which the memory then knows."""
    found, notes = split.assign(manifest, **FRACTIONS, seed=seed, remembered=memory.table)
    memory.take_over(found)
    return found, notes


class Growing:
    """A data set that grows: new images, re-encoded copies, copies that lie in another group."""

    def __init__(self, seed: int, groups: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.groups = groups
        self.labels = "abcd"[: self.random.randint(2, 4)]
        self.images: list[Image_] = []
        for label in self.labels:
            for _ in range(3):
                self.images.append((label, *self._new(), ""))
            self.grow(label, self.random.randint(0, 5))

    def grow(self, label: str, count: int) -> None:
        """Add images to a class."""
        for _ in range(count):
            group = f"g{self.random.randrange(self.groups)}" if self.random.random() < 0.5 else ""
            file, pixels = self._new()
            if self.random.random() < 0.3:
                pixels = self.random.choice(self.images)[2]
            self.images.append((label, file, pixels, group))

    def _new(self) -> tuple[str, str]:
        name = str(self.random.random())
        return digest(name), digest(f"pixels {name}")[:32]


def several(manifest: pd.DataFrame, by: pd.Series[Any]) -> set[Any]:
    """Return what lies in more than one split."""
    counts = manifest["split"].groupby(by).nunique()
    return set(counts.index[counts > 1])


@pytest.mark.parametrize("groups", [2, 200])
def test_nobody_moves_however_the_data_grow(tmp_path: Path, groups: int) -> None:
    """Of data sets that grow three times no image moves; only groups may be torn, and noted."""
    joined = 0
    for seed in range(8, 11):
        data, memory = Growing(seed, groups), SplitMemory(tmp_path / "none")
        before: dict[str, str] = {}
        torn: set[str] = set()
        for _ in range(4):
            manifest, notes = assigned(table(data.images), memory)
            now = dict(zip(manifest["sha256"], manifest["split"], strict=True))
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
            for label in data.labels:
                data.grow(label, data.random.randint(1, 8))
    assert joined > 0


def test_fresh_split_depends_on_content_alone(tmp_path: Path) -> None:
    """In a fresh workspace the order of listing decides nothing, with groups and copies too."""
    for seed in range(4):
        manifest = table(Growing(seed, 20).images)
        first, _ = assigned(manifest, SplitMemory(tmp_path / "none"))
        shuffled = manifest.sample(frac=1, random_state=seed).reset_index(drop=True)
        second, _ = assigned(shuffled, SplitMemory(tmp_path / "none"))
        by_file = first.set_index("sha256")["split"]
        assert (second.set_index("sha256")["split"] == by_file[second["sha256"]]).all()


def test_copy_that_joins_two_groups_moves_nobody(tmp_path: Path) -> None:
    """The new copy goes where the same pixels are, and a note names it and the place."""
    images = [(label, digest(f"{label}{n}"), f"{label}{n}", f"{label}{n}")
              for label in "ab" for n in range(20)]  # fmt: skip
    memory = SplitMemory(tmp_path / "none")
    before, _ = assigned(table(images), memory)
    train, test = (before[before["split"] == name].iloc[0] for name in ("train", "test"))
    bridge = (train["label"], digest("new"), train["pixels"], test["group"])
    after, notes = assigned(table([*images, bridge]), memory)
    assert list(after["split"]) == [*before["split"], "train"]
    assert any("40.png (train)" in note and "none of those was moved" in note for note in notes)


def test_class_that_loses_its_test_image_says_so(tmp_path: Path) -> None:
    """What was trained on is not tested on: the gap is noted, and the next new image fills it."""
    images = [(label, digest(f"{label}{n}"), f"{label}{n}", "")
              for label in "ab" for n in range(4)]  # fmt: skip
    memory = SplitMemory(tmp_path / "none")
    before, _ = assigned(table(images), memory)
    gone = before[(before["label"] == "a") & (before["split"] == "test")].index
    left = [image for place, image in enumerate(images) if place not in gone]
    after, notes = assigned(table(left), memory)
    assert list(after["split"]) == list(before.drop(index=gone)["split"])
    assert any(note.startswith("1 class without test images") for note in notes)
    filled, _ = assigned(table([*left, ("a", digest("new"), "new", "")]), memory)
    assert filled["split"].iloc[-1] == "test"
    with pytest.raises(DataError, match="test split is empty"):
        assigned(after[after["split"] != "test"].assign(split=""), memory)


def test_runs_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Four that assign different images at once leave all of them remembered."""

    def run(number: int) -> None:
        images = [("a", digest(f"{number} {n}"), f"{number} {n}", "") for n in range(10)]
        with split_memory.opened(tmp_path, SHARES, 0, list) as memory:
            memory.remember(table(images).assign(split="test"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    with split_memory.opened(tmp_path, SHARES, 0, list) as memory:
        assert len(memory.table) == 80
    with split_memory.opened(tmp_path, SHARES, 1, list) as memory:
        assert memory.table.empty


def test_damaged_memory_is_not_forgotten_in_silence(photos: Path) -> None:
    """A file that cannot be read ends the run with its name, instead of moving images."""
    work = photos.parent / "work"
    ingest(config_of(photos), work)
    file = next((work / "splits").glob("*.parquet"))
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


def test_same_pixels_in_another_format_are_the_same_image(tmp_path: Path) -> None:
    """BMP copies of PNG files lie where these lie, from the start or added later, and all stay."""
    photos = write_photos(tmp_path / "photos", images=6)
    work = photos.parent / "work"
    before = splits_of(ingest(config_of(photos), work))
    for file in list(photos.rglob("*.png")):
        Image.open(file).save(file.with_suffix(".bmp"))
    assert splits_of(ingest(config_of(photos), work)) == before
    splits_of(ingest(config_of(photos), photos.parent / "fresh"))
    write_photos(photos, images=9)
    after = splits_of(ingest(config_of(photos), work))
    assert {name: after[name] for name in before} == before


def small_and_grown(folder: Path) -> tuple[RunConfig, Path, Path]:
    """Return a config under which an image of a small folder moves when nothing is remembered."""
    small = write_photos(folder / "small" / "photos", classes=2, images=4)
    grown = write_photos(folder / "grown" / "photos", classes=2, images=12)
    first, later = (scan(config_of(data), folder / "scan").manifest for data in (small, grown))
    for seed in range(50):
        before, after = (
            split.assign(manifest, **FRACTIONS, seed=seed)[0].set_index("sha256")["split"]
            for manifest in (first, later)
        )
        if (after[before.index] != before).any():
            return config_of(small, split_seed=seed), small, grown
    pytest.fail("no seed moves an image")


@pytest.mark.usefixtures("own_store")
def test_data_of_the_last_run_keep_their_split(tmp_path: Path) -> None:
    """In a new workspace, the manifest of the last run in the store decides."""
    config, small, grown = small_and_grown(tmp_path)
    seed = config.data.split_seed
    first = ingest(config, tmp_path / "first")
    before = splits_of(first)
    with tracked_run.owned_run(config.model_copy(update={"name": "photos"}), tmp_path, {}) as run:
        tracked_run.log_data(run, "photos", first.fingerprint, first.manifest_file)
    now = config_of(grown, split_seed=seed)
    after = splits_of(ingest(now, tmp_path / "another workspace"))
    assert {name: after[name] for name in before} == before
    assert small.name == grown.name == "photos"


def test_a_plan_alone_remembers_nothing(photos: Path) -> None:
    """A dry run shows a split that a later run need not keep."""
    ingest(config_of(photos), photos.parent / "work", remember=False)
    assert not list((photos.parent / "work" / "splits").glob("*.parquet"))
