"""Columns of the data itself: which can be chosen to slice the images by."""

from __future__ import annotations

import pytest

from patchline.pipeline.data.manifests.manifest import COLUMNS
from patchline.pipeline.data.manifests.own_columns import check_slices, own_columns
from patchline.pipeline.errors import ConfigError

THERE = [*COLUMNS, "column:site", "column:age"]


def test_columns_that_are_there_can_be_chosen() -> None:
    """Those of every manifest, and those of the data."""
    check_slices(["group", "column:site"], THERE)
    assert own_columns(THERE) == ["column:site", "column:age"]


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (
            THERE,
            "'column:sites', .*did you mean column:site\\? choose from: column:site, column:age",
        ),
        (COLUMNS, "'column:sites', but the data has no such column; only tables and shards have"),
    ],
)
def test_an_unknown_column_is_answered_with_those_that_are_there(
    there: list[str], message: str
) -> None:
    """The sentence names them, or says which data has some."""
    with pytest.raises(ConfigError, match=message):
        check_slices(["column:sites"], there)
