"""The classes of a teacher are matched with those of the data by name."""

from __future__ import annotations

import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.teaching.class_columns import class_columns


def test_classes_are_found_in_any_order() -> None:
    """The columns are in the order of the data's classes."""
    columns = class_columns("t/1", ("down", "flat", "across"), ("across", "down", "flat"))
    assert columns.columns == (2, 0, 1)
    assert columns.note() == ""


def test_classes_that_only_the_teacher_knows_are_left_out_and_said() -> None:
    """What becomes of their probabilities is said, too."""
    columns = class_columns("t/1", ("a", "b", "c", "d"), ("b", "d"))
    assert (columns.columns, columns.left_out) == ((1, 3), ("a", "c"))
    assert columns.note() == (
        "the teacher knows 2 classes that the data does not have (a, c): they are left out, and "
        "its probabilities of the other 2 are scaled to add up to 1"
    )


def test_a_teacher_that_does_not_know_a_class_is_refused() -> None:
    """Its name and the names of the classes help to find the right one."""
    with pytest.raises(ConfigError, match=r"t/1 does not know 1 class of the data: tulip; it kn"):
        class_columns("t/1", ("LABEL_0", "rose"), ("rose", "tulip"))
