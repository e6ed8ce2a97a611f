"""What a user writes for a searched setting, and the scale that it gets."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline.errors import ConfigError
from patchline.plugins.tools.sweep.ranges import Choices, NumberRange, parsed


@pytest.mark.parametrize(
    ("given", "log"),
    [
        ("1e-4..1e-2", True),
        ("1e-4..1e-2 linear", False),
        ({"low": 1e-4, "high": 1e-2}, True),
        ({"low": 1e-4, "high": 1e-2, "scale": "linear"}, False),
        ("-1..1", False),
    ],
)
def test_a_range_is_logarithmic_where_that_is_sensible(given: Any, log: bool) -> None:
    """Positive ends a factor of ten apart, unless the scale is named."""
    dimension = parsed("key", given)
    assert isinstance(dimension, NumberRange)
    assert dimension.log is log


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("a,b,c", ("a", "b", "c")),
        ("true,false", (True, False)),
        ("null,1e-5", (None, 1e-5)),
        ("1,true", (1, True)),
    ],
)
def test_values_are_read_as_in_a_file(given: Any, values: tuple[Any, ...]) -> None:
    """Numbers, truth values and null, each once."""
    dimension = parsed("key", given)
    assert isinstance(dimension, Choices)
    assert [(type(each), each) for each in dimension.values] == [(type(v), v) for v in values]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0.1", "nothing to choose"),
        ("a..b", "no number"),
        ("0..1 log", "must begin above 0"),
        ("1..inf", "no number"),
        ({"low": 1, "high": 2, "step": 1}, "no step"),
        ([[1], [2]], "a group"),
    ],
)
def test_a_bad_range_is_refused_with_the_form(given: Any, words: str) -> None:
    """The sentence names the setting and the problem."""
    with pytest.raises(ConfigError, match=words) as error:
        parsed("optimizer.beta1", given)
    assert "optimizer.beta1" in str(error.value)
