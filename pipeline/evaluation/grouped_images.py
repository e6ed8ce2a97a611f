"""Which of the images of a table belong together, such as those of a patient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups

if TYPE_CHECKING:
    import pandas as pd


def groups_of(table: pd.DataFrame) -> list[str] | None:
    """Return the group of each image, its own if it has none; None if no image has one."""
    if "group" not in table or not len(table):
        return None
    groups = table["group"].astype(str)
    if not (groups != "").any():
        return None
    own = "image " + table["path"].astype(str)
    return list(groups.where(groups != "", own))


def image_groups(table: pd.DataFrame) -> ImageGroups | None:
    """Return the groups of a table's images; None if no two of them are of one group."""
    return ImageGroups.of(groups_of(table))
