"""The columns that a data source adds to the manifest, such as those of a table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.plugin_api import ImageListing


def own_columns(names: Iterable[str]) -> list[str]:
    """Return those of some names that a data source has added."""
    return [name for name in names if name.startswith(OWN_COLUMN)]


def listed_columns(listing: ImageListing) -> list[str]:
    """Return the names that the columns of a source get in the manifest."""
    return [f"{OWN_COLUMN}{printable(name)}" for name in listing.columns]


def check_slices(slices: Iterable[str], there: Iterable[str]) -> None:
    """Refuse to slice the images by a column that the data does not have.

    Args:
        slices: the value of `evaluation.slices`.
        there: the columns of the manifest.

    Raises:
        ConfigError: naming the columns that are there.
    """
    columns = own_columns(there)
    for name in own_columns(slices):
        if name in columns:
            continue
        close = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
        nearest = f"did you mean {close[0]}? " if close else ""
        none = "only tables and shards have such columns, so remove it"
        remedy = f"choose from: {', '.join(columns)}" if columns else none
        raise ConfigError(
            f"evaluation.slices names '{name}', but the data has no such column; {nearest}{remedy}."
        )
