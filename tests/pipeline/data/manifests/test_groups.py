"""Groups by a regular expression on the path: they stay in one split, and mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.groups import with_groups
from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import draw_photo


def _listing(*paths: str, group: str | None = None) -> ImageListing:
    images = [ListedImage(path, "rose", group=group) for path in paths]
    return ImageListing(name="photos", root=Path("photos"), images=images, mirror_symmetric=True)


def _add(folder: Path, patients: int, views: str, first: int = 0) -> None:
    for number in range(patients):
        for view in views:
            file = folder / "ab"[number % 2] / f"patient{number:02d}_{view}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_photo(number % 2, first + 100 * number + ord(view))).save(file)


def _rows(folder: Path, work: str) -> pd.DataFrame:
    settings = {"path": str(folder), "group_pattern": r"(patient\d+)_"}
    return manifests.load(ingest(validated({"data": settings}), Path(work)).manifest_file)


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        (r"(patient\d+)_", ["patient1", "patient1", "patient22", None]),
        (r"(left|right)/(?P<group>patient\d+)", ["patient1", "patient1", None, None]),
        (r"(patient\d+)?_", ["patient1", "patient1", "patient22", None]),
    ],
)
def test_images_are_grouped_by_what_is_captured(pattern: str, groups: list[str | None]) -> None:
    """The part in parentheses, or the one that is called group; without it an image is alone."""
    paths = ("left/patient1_a.png", "right/patient1_b.png", "c/patient22_a.png", "left/_other.png")
    listing = with_groups(_listing(*paths), pattern)
    assert [image.group for image in listing.images] == groups
    assert "in no group" in listing.notes[-1]


def test_groups_of_the_data_itself_are_not_overwritten() -> None:
    """Both together are a contradiction; a pattern that fits no path is a mistake."""
    with pytest.raises(ConfigError, match="the data names groups itself"):
        with_groups(_listing("a_1.png", group="anna"), "(a)_")
    with pytest.raises(ConfigError, match=r"captures no text in any path, such as a_1\.png or b_"):
        with_groups(_listing("a_1.png", "b_1.png"), "(patient)")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "not a regular expression"),
        ("patient", "captures 0 parts"),
        (r"(\w+)/(\w+)", "captures 2 parts"),
    ],
)
def test_a_pattern_captures_one_part(pattern: str, words: str) -> None:
    """The config says so before anything is read."""
    with pytest.raises(ConfigError, match=words):
        validated({"data": {"path": "photos", "group_pattern": pattern}})


def test_no_group_straddles_the_splits(tmp_path: Path) -> None:
    """All images of a patient are in one split, also those that arrive later."""
    _add(tmp_path / "photos", 24, "xy")
    before = _rows(tmp_path / "photos", "work").groupby("group")["split"].agg(set)
    assert len(before) == 24
    assert all(len(found) == 1 for found in before)
    _add(tmp_path / "photos", 24, "w")
    assert _rows(tmp_path / "photos", "work").groupby("group")["split"].agg(set).equals(before)


def test_another_data_set_may_call_its_groups_the_same(tmp_path: Path) -> None:
    """Its patients are other ones: it is split as in a workspace of its own."""
    _add(tmp_path / "north", 24, "x")
    _add(tmp_path / "south", 6, "xy", first=50_000)
    alone = _rows(tmp_path / "south", "fresh")
    _rows(tmp_path / "north", "shared")
    assert _rows(tmp_path / "south", "shared").equals(alone)
