"""Whether cells with commas are several labels, names, or a question."""

from __future__ import annotations

import pytest

from patchline.pipeline.data.labels.reading_rules import ReadingRules
from patchline.pipeline.data.labels.set_cells import read_set_cells
from patchline.pipeline.errors import DataError

_NAMES = {
    "an animal and its colour": ("cat, black", "cat, white", "dog, black", "dog, white", "fox"),
    "family names": ("Smith, John", "Smith, Anna", "Doe, Anna", "Doe, John", "healthy"),
    "a flower and its colour": ("rose, red", "rose, white", "tulip, red", "tulip, white", "rose"),
}


@pytest.mark.parametrize("cells", _NAMES.values(), ids=_NAMES)
def test_second_parts_that_begin_no_cell_are_a_question(cells: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=r"--data\.label-separator , to learn several labels"):
        read_set_cells(cells, "label", ReadingRules())


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (("cat,dog", "cat", "dog", "dog,fox"), ("cat", "dog")),
        (("['beach'\n \"children's room\"]",), ("beach", "children's room")),
        (('["beach", null]',), ("beach",)),
        (("[]",), ()),
        (("[0 3]", "[1]", "[3]"), ("0", "3")),
        (("[1. 3.]", "[1]", "[3]"), ("1", "3")),  # a decimal point makes no other class
        (('[["pet", "cat"], ["pet"], ["wild", "fox"]]',), ("cat", "fox")),
        (('{"taxonomy": [["pet", "cat"]]}', "{'choices': [['pet', 'dog']]}"), ("cat",)),
        (('{"taxonomy": []}', '[["cat"]]'), ()),
        (("tench, Tinca tinca", "goldfish, Carassius auratus"), None),
    ],
)
def test_lists_are_read_with_commas_or_without(
    cells: tuple[str, ...], labels: tuple[str, ...] | None
) -> None:
    """A data frame with arrays in its cells, saved as CSV, has none; scientific names stay.

    Of the paths of a taxonomy, the last names are labels, as in Label Studio's export.
    """
    read = read_set_cells(cells, "label", ReadingRules())
    assert (read.sets[0] if read.several else None) == labels


@pytest.mark.parametrize("cell", ["['a' ... 'z']", "['a', b]"])
def test_a_list_that_cannot_be_read_is_no_label(cell: str) -> None:
    """Beside other lists, the text in brackets would become a class."""
    with pytest.raises(DataError, match=r"holds lists, but .* cannot be read as one"):
        read_set_cells((cell, "['tree']"), "label", ReadingRules())


@pytest.mark.parametrize("cell", ['[["animal", 1]]', '{"labels": []}', "[{'x': 1}]", "[[]]"])
def test_a_structure_is_no_label(cell: str) -> None:
    """Choices and taxonomies of Label Studio are lists of labels, and all else is refused."""
    with pytest.raises(DataError, match="is no label and no list of labels"):
        read_set_cells((cell,), "label", ReadingRules())
    cells = ('{"choices": ["b", "a"]}', "{'choices': 'a'}")
    assert read_set_cells(cells, "label", ReadingRules()).sets == [("a", "b"), ("a",)]


def test_one_name_in_two_branches_of_a_taxonomy() -> None:
    """It is refused; a part beside its whole is said."""
    cells = ('[["bird", "crane"]]', '[["machine", "crane"]]', '[["bird"]]')
    with pytest.raises(DataError, match=r"'label'.* two branches, 'bird > crane' and 'machine > "):
        read_set_cells(cells, "label", ReadingRules())
    [note] = read_set_cells(cells[::2], "label", ReadingRules()).notes
    assert "'bird' is a class of its own beside its part 'crane'" in note
