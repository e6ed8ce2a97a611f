"""Machines that assign images at the same time agree about every image, and lose none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.data.splits.split_memory import SplitMemory
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.folder_store import FolderStore
from patchline.pipeline.workspace.object_store import ConflictError, ObjectStore
from patchline.pipeline.workspace.shared_file import SharedFile
from patchline.pipeline.workspace.shared_files import SharedFiles
from tests.pipeline.data.splits.made_tables import assigned, by_content, table

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


def test_many_machines_at_once_lose_nothing(store: FolderStore, tmp_path: Path) -> None:
    """Each has assigned other images and common ones: all are remembered, none has two splits."""

    def work(number: int) -> pd.DataFrame:
        folder = tmp_path / f"machine {number}"
        folder.mkdir()
        return assign_on_machine(store, folder, images(20 * number, 40))

    with ThreadPoolExecutor(3) as pool:
        together = pd.concat(pool.map(work, range(3)))
    assert together.groupby("sha256")["split"].nunique().max() == 1
    last = assign_on_machine(store, tmp_path / "a", images(0, 80))
    assert by_content(last) == by_content(together)


def test_a_damaged_memory_is_never_begun_again(store: FolderStore, tmp_path: Path) -> None:
    """Images could move to another split; a machine that still has the file repairs the store."""
    assign_on_machine(store, tmp_path / "a", images(0, 40))
    for file in (tmp_path / "store/files").rglob("*"):
        if file.is_file():
            file.write_bytes(b"?" * file.stat().st_size)
    with pytest.raises(DataError, match=rf"{NAME} in .* cannot be used: the object files/"):
        assign_on_machine(store, tmp_path / "b", images(0, 40))
    assign_on_machine(store, tmp_path / "a", images(0, 40))
    assign_on_machine(store, tmp_path / "b", images(0, 40))
    [object_file] = (tmp_path / "store/names/splits").iterdir()
    object_file.write_text("{")
    with pytest.raises(DataError, match="cannot be used"):
        assign_on_machine(store, tmp_path / "b", images(0, 40))
