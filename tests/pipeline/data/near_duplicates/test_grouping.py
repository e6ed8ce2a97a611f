"""Near duplicates as groups: together in one split, also with those that arrive later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.near_duplicates.grouping import with_near_groups
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector
from tests.pipeline.inspection.test_inspecting import scene

SIDE, PLAIN, COPIED = 48, 30, 8


def _save(image: Image.Image, folder: Path, number: int, name: str) -> None:
    file = folder / "ab"[number % 2] / f"{number:02d}_{name}"
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, quality=60)


def _rows(folder: Path, **settings: Any) -> pd.DataFrame:
    data = {"path": str(folder), "group_near_duplicates": True, **settings}
    found = ingest(validated({"data": data}), folder.parent / "work")
    rows = manifests.load(found.manifest_file)
    return rows.assign(number=[int(Path(path).name[:2]) for path in rows["path"]])


def test_crops_and_mirror_images_stay_in_one_split(tmp_path: Path) -> None:
    """Each picture's versions are in one split, and a version that arrives later joins them."""
    folder = tmp_path / "photos"
    for number in range(PLAIN):
        _save(scene(number, SIDE), folder, number, "whole.png")
        if number < COPIED:
            cropped = scene(number, SIDE).crop((3, 3, SIDE - 3, SIDE - 3)).resize((SIDE, SIDE))
            _save(cropped, folder, number, "crop.png")
    before = _rows(folder).groupby("number")["split"].agg(set)
    assert all(len(splits) == 1 for splits in before)
    for number in range(COPIED):
        mirrored = scene(number, SIDE).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        _save(mirrored, folder, number, "mirror.jpg")
    rows = _rows(folder)
    pd.testing.assert_series_equal(rows.groupby("number")["split"].agg(set), before)
    versions = rows[rows["number"] < COPIED].groupby("number")["group"].agg(set)
    assert all(len(names) == 1 and "near " in min(names) for names in versions)
    assert (rows.loc[rows["number"] >= COPIED, "group"] == "").all()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["bert", "anna", "bert", ""], ["anna", "anna", "anna", ""]),  # 0 and 1 are near duplicates
        (["", "", "anna", "anna"], [None, None, "anna", "anna"]),
    ],
)
def test_groups_that_near_duplicates_connect_become_one(
    given: list[str], expected: list[str | None]
) -> None:
    """A name that the data gives stays; a group without one is named by a digest."""
    first = scene(1, SIDE)
    pictures = [first, first.resize((40, 40)), scene(2, SIDE), scene(3, SIDE)]
    thumbnails = ThumbnailCollector()
    for number, picture in enumerate(pictures):
        thumbnails.add(str(number), b"", np.asarray(picture))
    columns = {"status": "ok", "group": given, "width": SIDE, "height": SIDE}
    digests = [f"{number:064x}" for number in range(4)]
    manifest = pd.DataFrame({"path": list("0123"), "sha256": digests, "pixels": digests, **columns})
    grouped, note = with_near_groups(manifest, thumbnails)
    own = f"near {digests[0][:12]}"
    assert grouped["group"].tolist() == [own if name is None else name for name in expected]
    assert note == "2 images are near duplicates of others, kept together in 1 group"
