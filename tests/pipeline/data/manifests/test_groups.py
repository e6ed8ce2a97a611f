"""Groups by a regular expression on the path: they stay in one split, and mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.source_listing import with_groups
from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import write_photos


def _listing(*paths: str, group: str | None = None) -> ImageListing:
    images = [ListedImage(path, "rose", group=group) for path in paths]
    return ImageListing(name="photos", root=Path("photos"), images=images, mirror_symmetric=True)


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
        validate_config({"data": {"path": "photos", "group_pattern": pattern}})


def test_another_data_set_may_call_its_groups_the_same(tmp_path: Path) -> None:
    """Its patients are other ones: it is split as in a workspace of its own."""

    def splits(hospital: str, work: str) -> pd.DataFrame:
        settings = {"path": str(tmp_path / hospital), "group_pattern": r"(\d+)\.png"}
        return manifests.load(
            ingest(validate_config({"data": settings}), tmp_path / work).manifest_file
        )

    write_photos(tmp_path / "north", classes=2, images=24)
    write_photos(tmp_path / "south", classes=3, images=6, side=16)
    alone = splits("south", "fresh")
    assert alone.groupby("group")["split"].nunique().max() == 1
    splits("north", "shared")
    assert splits("south", "shared").equals(alone)
