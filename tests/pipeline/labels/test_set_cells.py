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


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("['beach' 'sunset']", ("beach", "sunset")),
        ("['beach'\n \"children's room\"]", ("beach", "children's room")),
        ("['beach', 'sunset']", ("beach", "sunset")),
        ("['beach']", ("beach",)),
        ('["beach", null]', ("beach",)),
        ("[]", ()),
    ],
)
def test_lists_of_numpy_are_read_as_those_of_python(cell: str, labels: tuple[str, ...]) -> None:
    """A data frame with arrays in its cells, saved as CSV, has no commas between the texts."""
    assert read_set_cells((cell, "['tree']"), "label", ReadingRules()).sets[0] == labels


@pytest.mark.parametrize(("cell", "labels"), [("[0 3]", ("0", "3")), ("[1. 3.]", ("1", "3"))])
def test_lists_of_numbers_need_no_commas(cell: str, labels: tuple[str, ...]) -> None:
    """Nor are whole numbers with a decimal point other classes."""
    assert read_set_cells((cell, "[1]", "[3]"), "label", ReadingRules()).sets[0] == labels


@pytest.mark.parametrize("cell", ["['a' ... 'z']", "['a', b]", "[{}]"])
def test_a_list_that_cannot_be_read_is_no_label(cell: str) -> None:
    """Beside other lists, the text in brackets would become a class."""
    with pytest.raises(DataError, match=r"holds lists, but .* cannot be read as one"):
        read_set_cells((cell, "['tree']"), "label", ReadingRules())
