"""Settings of the report are checked when they are read."""

from __future__ import annotations

import pytest

from patchline.pipeline import config_files
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.config import SLICE_COLUMNS, EvaluationConfig


def test_an_unknown_column_names_the_nearest_and_all_there_are() -> None:
    """A misspelt column is answered with the one that was meant, and with every other."""
    with pytest.raises(ConfigError, match="did you mean group") as raised:
        config_files.validated({"evaluation": {"slices": ["mode", "grop"]}})
    assert "evaluation.slices" in str(raised.value)
    assert "'grop'" in str(raised.value)
    for column in SLICE_COLUMNS:
        assert column in str(raised.value)


def test_a_column_far_from_all_has_no_nearest() -> None:
    """A column like no other is refused without a guess."""
    with pytest.raises(ConfigError, match="xyzzy") as raised:
        config_files.validated({"evaluation": {"slices": ["xyzzy"]}})
    assert "did you mean" not in str(raised.value)


def test_a_column_is_used_once() -> None:
    """A column that is named twice divides the images once; all may be named, or none."""
    assert EvaluationConfig(slices=("mode", "size", "mode")).slices == ("mode", "size")
    assert EvaluationConfig(slices=()).slices == ()
    assert EvaluationConfig(slices=tuple(SLICE_COLUMNS)).slices == tuple(SLICE_COLUMNS)


def test_a_column_of_a_table_is_written_with_its_prefix() -> None:
    """Whether the data has it is checked when the data is known."""
    assert EvaluationConfig(slices=("column:site",)).slices == ("column:site",)
    with pytest.raises(ConfigError, match="or column:NAME, a column of a table"):
        config_files.validated({"evaluation": {"slices": ["site"]}})


@pytest.mark.parametrize(
    ("setting", "value"), [("gallery_size", -1), ("gallery_size", 101), ("small_sample", 0)]
)
def test_sizes_have_limits(setting: str, value: int) -> None:
    """A size outside its range is refused with the range."""
    with pytest.raises(ConfigError, match=f"evaluation.{setting} is {value}, but"):
        config_files.validated({"evaluation": {setting: value}})
