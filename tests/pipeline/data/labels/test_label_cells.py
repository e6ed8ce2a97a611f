"""Cells of a label column: missing ones, and numbers written in several ways."""

from __future__ import annotations

import pytest

from patchline.pipeline.data.labels.label_cells import read_label_cells
from patchline.pipeline.errors import DataError


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["0", "0.0", "1", "1.0"], ["0", "0", "1", "1"]),
        (["1e0", "2"], ["1", "2"]),
        (["007", "008", "009"], ["007", "008", "009"]),
        (["1.50", "2.0", "2"], ["1.50", "2", "2"]),
        (["-0.0", "0", "-1"], ["0", "0", "-1"]),
        (["0", "0.0", "cat"], ["0", "0.0", "cat"]),
        (["nan", "NaN", "<NA>", "NULL", "#N/A", "?", "", " "], [""] * 8),
        (["NA", "none", "unknown", "-", "+"], ["NA", "none", "unknown", "-", "+"]),
        (["1_000", "1000"], ["1_000", "1000"]),
        (["\u0661", "1"], ["\u0661", "1"]),
        (["1e999", "2"], ["1e999", "2"]),
    ],
)
def test_cells_are_read_as_labels(cells: list[str], labels: list[str]) -> None:
    """Missing values are no label; one number is one label; any other text stays as it is."""
    assert read_label_cells(cells, "y").labels == labels


@pytest.mark.parametrize("cells", [["1.1", "1.10"], ["1E2", "100"], ["01", "1"], ["+1", "1"]])
def test_equal_numbers_that_may_be_two_labels_are_a_question(cells: list[str]) -> None:
    """Both answers are obeyed: one class, or the texts as they are."""
    with pytest.raises(DataError, match=r"the same number.*--data\.merge-classes .*separator none"):
        read_label_cells(cells, "y")
    assert len(set(read_label_cells(cells, "y", merge=True).labels)) == 1
    assert read_label_cells(cells, "y", literal=True).labels == cells


@pytest.mark.parametrize("cell", ["2024-02-01 00:00:00", "2-Sep", "Feb-01", "1:02:00"])
def test_dates_are_a_question(cell: str) -> None:
    """A spreadsheet makes them of `1-2` and of the gene SEPT2."""
    with pytest.raises(DataError, match="holds dates: 1 of 2 labels"):
        read_label_cells([cell, "rose"], "y")
    assert read_label_cells([cell, "rose"], "y", literal=True).labels == [cell, "rose"]


def test_what_is_read_in_another_way_is_said() -> None:
    """Both notes name the column and the values."""
    missing, numbers = read_label_cells(["nan", "?", "?", "0.0", "0", "1"], "grade").notes
    assert missing.startswith("3 rows have no label in column 'grade': '?', 'nan' count as empty")
    assert "'0.0' is read as '0'" in numbers
    assert read_label_cells(["cat", "", "dog"], "y").notes == []


def test_other_words_can_mean_no_label() -> None:
    """A list of one's own replaces the default one, or adds to it."""
    assert read_label_cells(["nan", "Tbd", "x"], "y", ["tbd"]).labels == ["nan", "", "x"]
    assert read_label_cells(["nan", "Tbd", "x"], "y", ["default", "tbd"]).labels == ["", "", "x"]
