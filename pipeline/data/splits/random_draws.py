"""Which images were drawn at random to be labelled, and which were chosen because they help most.

`patchline label` asks about images that are hard to predict. The accuracy on them is not that of
the images that come in, so a test is made of those that were drawn at random. An image is chosen
with its whole unit (its group, and copies), because a unit is in one split.
"""

from __future__ import annotations

import pandas as pd

from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.data.labels.answer_columns import ANSWER_SOURCE, NEAR_DUPLICATE, UNCHOSEN
from patchline.pipeline.data.manifests.same_images import column_of, units_of
from patchline.pipeline.terminal_words import by_number

_COLUMN = f"{OWN_COLUMN}{ANSWER_SOURCE}"
FEWEST = 10
"""With fewer units that were not chosen, any image may be a test image."""


def find_chosen(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which images were chosen to be labelled, as far as the data says so.

    None was if the data was not labelled with `patchline label`. A near duplicate of an answered
    image counts as this one.

    Args:
        rows: the images' rows of a manifest.
    """
    sources = column_of(rows, _COLUMN)
    is_drawn = sources.isin(UNCHOSEN)
    if is_drawn.all() or _COLUMN not in rows:
        return pd.Series(data=False, index=rows.index)
    units = pd.Series(units_of(rows), index=rows.index)
    is_chosen = ~is_drawn & (sources != NEAR_DUPLICATE)
    any_drawn = is_drawn.groupby(units).transform("any")
    any_chosen = is_chosen.groupby(units).transform("any")
    return any_chosen | ~any_drawn


def notes(rows: pd.DataFrame) -> list[str]:
    """Say that some test images were chosen to be labelled.

    Args:
        rows: the usable images of a manifest, with their splits.
    """
    tests = rows["split"] == "test"
    is_chosen = find_chosen(rows)
    count, tested = int((is_chosen & tests).sum()), int(tests.sum())
    if not count:
        return []
    drawn = len(set(units_of(rows)[~is_chosen.to_numpy()]))
    remedy = "label more images with it"
    if drawn >= FEWEST:
        remedy = "another data.split_seed makes a new test of those"
    note = (
        f"{count:,} of the {tested:,} test images {by_number(count, 'was', 'were')} not drawn at "
        "random to be labelled, so the test metrics are not those of the images that come in; "
        f"`patchline label` draws every third image at random: {remedy}"
    )
    return [note]
