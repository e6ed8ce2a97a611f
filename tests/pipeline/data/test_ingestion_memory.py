"""The result of an ingestion is used again exactly as long as nothing of it has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest
from tests.conftest import write_photos
from tests.pipeline.data.test_ingestion import config_of

REMEMBERED = "remembered"
"""A note that is written into a memory, so that a result shows where it comes from."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of photographs, one of them damaged."""
    folder = write_photos(tmp_path / "photos", classes=2, images=8)
    (folder / "across/bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno image")
    return folder


def work_of(photos: Path) -> Path:
    """Return the workspace beside a folder of photographs."""
    return photos.parent / ".patchline"


def ingested(photos: Path, *, fresh: bool = False, **settings: Any) -> IngestedData:
    """Return what is found in a folder, and mark what is remembered of it."""
    found = ingest(config_of(photos, **settings), work_of(photos), fresh=fresh)
    for file in (work_of(photos) / "ingestions").glob("*.json"):
        kept = json.loads(file.read_text())
        kept["data"]["notes"] = [REMEMBERED]
        file.write_text(json.dumps(kept))
    return found


def is_recalled(found: IngestedData) -> bool:
    """Return whether a result comes from a memory."""
    return found.notes == (REMEMBERED,)


@pytest.mark.usefixtures("later")
def test_data_is_read_again_after_any_change(photos: Path) -> None:
    """Of what earlier runs have stored, of the folders, or of a file."""
    work, first = work_of(photos), ingested(photos)

    def cut(folder: str) -> None:
        [file] = (work / folder).iterdir()
        file.write_bytes(file.read_bytes()[:-8])

    def other_data() -> None:
        shutil.rmtree(work / "splits")
        others = write_photos(photos.parent / "others", classes=3, images=8)
        shutil.rmtree(others / "down")
        ingest(config_of(others), work)

    def content() -> None:
        file = photos / "down/000.png"
        times, before = file.stat(), file.read_bytes()
        file.write_bytes(before[:-20] + bytes([before[-20] ^ 255]) + before[-19:])
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    changes: tuple[Callable[[], object], ...] = (
        lambda: cut("manifests"), lambda: cut("ingestions"),
        lambda: shutil.rmtree(work / "splits"), other_data, (photos / "later").mkdir, content,
    )  # fmt: skip
    for number, change in enumerate(changes):
        assert is_recalled(ingested(photos))
        change()
        found = ingested(photos)
        assert not is_recalled(found), number
        assert found.manifest_file.is_file()
        assert found == first or number > 3
    assert is_recalled(ingested(photos))


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("settings", [{"test_fraction": 0.3}, {"group_near_duplicates": True}])
def test_other_settings_have_a_result_of_their_own(photos: Path, settings: dict[str, Any]) -> None:
    """Which is used again with these settings, and does not replace the first."""
    ingested(photos)
    found = ingested(photos, **settings)
    assert not is_recalled(found)
    again = ingested(photos, **settings)
    assert is_recalled(again)
    assert again.model_copy(update={"notes": found.notes}) == found
    ingested(photos)  # the others may have made groups, whose splits are remembered
    assert is_recalled(ingested(photos))
    assert not is_recalled(ingested(photos, fresh=True))


@pytest.mark.usefixtures("later")
def test_a_copied_workspace_has_results_of_its_own(photos: Path) -> None:
    """It does not lead to the manifest in the workspace that it is a copy of."""
    first = ingested(photos)
    copy = photos.parent / "copy/.patchline"
    shutil.copytree(work_of(photos), copy)
    found = ingest(config_of(photos), copy)
    assert not is_recalled(found)
    assert found.manifest_file == copy / "manifests" / first.manifest_file.name
