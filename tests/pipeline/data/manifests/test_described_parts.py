"""Files described by several workers: the rows and images of a single process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.data.manifests import describing_processes
from patchline.pipeline.data.manifests.describing_processes import KeptImages, rows_of
from patchline.pipeline.errors import DataError
from patchline.pipeline.workers import active_launcher
from patchline.pipeline.workspace import chosen
from patchline.plugin_api import ListedImage
from tests.conftest import write_photos
from tests.pipeline.workers.wide_launcher import Wide


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(describing_processes, "FEWEST_FILES_OF_PART", 3)


def _kept(file: Path, count: int) -> KeptImages:
    np.save(file, np.zeros((count, 8, 8, 3), np.uint8))
    return KeptImages(file, "squash")


def test_parts_return_the_rows_of_one_process(tmp_path: Path) -> None:
    """Whole, damaged, missing and oddly named files, in their order; images in their own rows."""
    root = write_photos(tmp_path / "photos", classes=2, images=5)
    (root / "across" / "bad.png").write_bytes(b"no image")
    images = sorted(root.rglob("*.png"))
    files = [(ListedImage(each.relative_to(root).as_posix(), each.parent.name), True)
             for each in images]  # fmt: skip
    files += [(ListedImage(name, "down", "test"), True) for name in ("gone.png", "\udcff")]
    alone, divided = (_kept(tmp_path / name, len(files)) for name in ("a.npy", "b.npy"))
    expected = list(rows_of(root, files, kept=alone))
    wide = Wide()
    with active_launcher.using("wide", lambda: wide):
        rows = list(rows_of(root, files, kept=divided))
    assert len(wide.parts) == 4
    assert rows == expected
    assert np.array_equal(np.load(alone.file), np.load(divided.file))


@pytest.mark.parametrize(
    ("root", "photos"),
    [(".patchline/sources/webdataset/x", ""), (".", ".patchline/sources/objects/s3/b")],
)
def test_what_only_this_machine_has_is_described_here(
    root: str, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has made of the data, and a bucket's objects beside a table on its disk."""
    notes: list[str] = []
    monkeypatch.setattr(chosen, "_on_note", notes.append)
    folder = write_photos(tmp_path / root / photos, classes=1, images=6)
    paths = [each.relative_to(tmp_path / root).as_posix() for each in folder.rglob("*.png")]
    wide = Wide()
    wide.is_far = True
    with active_launcher.using("wide", lambda: wide):
        rows = list(rows_of(tmp_path / root, [(ListedImage(each, "a"), True) for each in paths]))
    assert {row["status"] for row in rows} == {"ok"}
    assert not wide.parts
    assert ["read on this machine alone" in each for each in notes] == [True]


def test_a_machine_without_the_data_is_an_error(tmp_path: Path) -> None:
    """Not a folder of unreadable images."""
    files = [(ListedImage(f"{each}.png", "a"), True) for each in range(20)]
    with (
        active_launcher.using("wide", Wide),
        pytest.raises(DataError, match="A node of the cluster has no"),
    ):
        list(rows_of(tmp_path / "elsewhere", files))
