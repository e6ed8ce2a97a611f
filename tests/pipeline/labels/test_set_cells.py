"""Whether cells with commas are several labels, names, or a question."""

from __future__ import annotations

import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.reading_rules import ReadingRules
from patchline.pipeline.labels.set_cells import read_set_cells

_NAMES = {
    "an animal and its colour": ("cat, black", "cat, white", "dog, black", "dog, white", "fox"),
    "family names": ("Smith, John", "Smith, Anna", "Doe, Anna", "Doe, John", "healthy"),
    "a flower and its colour": ("rose, red", "rose, white", "tulip, red", "tulip, white", "rose"),
}


@pytest.mark.parametrize("cells", _NAMES.values(), ids=_NAMES)
def test_second_parts_that_begin_no_cell_are_a_question(cells: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=r"--data\.label-separator , to learn several labels"):
        read_set_cells(cells, "label", ReadingRules())


def test_labels_in_any_place_are_several() -> None:
    cells = ("cat,dog", "cat", "dog", "dog,fox", "cat,fox", "cat,dog,fox")
    read = read_set_cells(cells, "label", ReadingRules())
    assert read.sets[0] == ("cat", "dog")
    assert read.sets[5] == ("cat", "dog", "fox")


def test_scientific_names_stay_whole() -> None:
    cells = ("tench, Tinca tinca", "goldfish, Carassius auratus")
    assert read_set_cells(cells, "label", ReadingRules()).several == ""
