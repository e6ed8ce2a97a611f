"""Slices divide all images, each into one part of a column, and mark what stands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from patchline.pipeline import config_files
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.config import SLICE_COLUMNS, EvaluationConfig
from patchline.pipeline.evaluation.metrics.intervals import proportion
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import Slice, find_undivided, slices
from tests.pipeline.evaluation.conftest import made_of, random_predictions


def _by(predictions: Predictions, column: str) -> tuple[Slice, ...]:
    return slices(predictions, EvaluationConfig(slices=(column,)))


def _answers(right: list[bool], **columns: Any) -> Predictions:
    table = np.array([[0.9, 0.1] if answer else [0.1, 0.9] for answer in right])
    return made_of(table, [0] * len(right), **columns)


def test_every_image_is_in_one_part_of_every_column() -> None:
    """By any column, the parts' images and right answers add up to all of them."""
    generator = np.random.default_rng(1)
    predictions = random_predictions(
        400,
        3,
        path=[f"{k % 5}/deep/{k}.png" for k in range(400)],
        group=[f"patient {k % 40}" for k in range(400)],
        mode=generator.choice(["RGB", "L"], 400),
        width=generator.integers(10, 900, 400),
        height=generator.integers(10, 900, 400),
        bytes=generator.integers(100, 9_000_000, 400),
    )
    right = int((predictions.table["predicted"] == predictions.table["label"]).sum())
    found = slices(predictions, EvaluationConfig(slices=tuple(SLICE_COLUMNS)))
    for column in SLICE_COLUMNS:
        parts = {part.value: part for part in found if part.column == column}
        assert sum(part.images for part in parts.values()) == 400
        assert sum(round(part.accuracy.value * part.images) for part in parts.values()) == right


@pytest.mark.parametrize(
    ("column", "values", "parts"),
    [
        ("width", range(1, 9), {"1 to 2 px": 2, "3 to 4 px": 2, "5 to 6 px": 2, "7 to 8 px": 2}),
        ("height", [64, 32, 32, 96, 64, 32], {"32 px": 3, "64 px": 2, "96 px": 1}),
        ("width", [32] * 90 + list(range(40, 50)), {"32 px": 90, "40 to 49 px": 10}),
        ("size", [10, 30, 32, 50], {"10 px": 1, "30 px": 1, "32 px": 2}),
        ("bytes", [10, 1500, 2_000_000], {"10 bytes": 1, "1.5 kB": 1, "2.0 MB": 1}),
    ],
    ids=["quarters", "few numbers", "quarters that fall together", "shorter side", "units"],
)
def test_numbers_are_cut_into_quarters_with_their_bounds(
    column: str, values: Sequence[int], parts: dict[str, int]
) -> None:
    """Up to four different numbers are parts of their own; units are readable."""
    columns = {"width" if column == "size" else column: list(values)}
    found = _by(_answers([True] * len(values), **columns), column)
    assert {part.value: part.images for part in found} == parts


def test_rare_values_are_put_together() -> None:
    """Of many values the eleven most frequent are shown, and the others counted together."""
    groups = [f"g{k:02d}" for k in range(20) for _ in range(20 - k)]
    parts = _by(_answers([True] * len(groups), group=groups), "group")
    assert [part.value for part in parts] == [*(f"g{k:02d}" for k in range(11)), "9 others"]
    assert parts[-1].images == sum(20 - k for k in range(11, 20))


def test_small_and_unusual_parts_are_marked() -> None:
    """Parts with few images are small; parts whose interval leaves the overall one out differ."""
    right = [True] * 90 + [False] * 35 + [True] * 5
    predictions = _answers(right, group=["good"] * 90 + ["bad"] * 30 + ["few"] * 10)
    good, bad, few = _by(predictions, "group")
    for part, accuracy, small in (
        (good, proportion(90, 90), False),
        (bad, proportion(0, 30), False),
        (few, proportion(5, 10), True),
    ):
        assert (part.accuracy, (part.small, part.differs)) == (accuracy, (small, not small))


def test_a_column_that_is_the_same_for_all_is_no_division() -> None:
    """It has no parts, and is named with its value."""
    predictions = _answers([True, False], mode="L")
    config = EvaluationConfig(slices=("group", "mode", "size"))
    assert slices(predictions, config) == ()
    assert find_undivided(predictions.table, config) == {
        "group": "none given",
        "mode": "L",
        "size": "32 px",
    }


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["mode", "grop"], "'grop'.*did you mean group"),
        (["site"], "or column:NAME, a column of a table"),
    ],
)
def test_an_unknown_column_is_refused(columns: list[str], words: str) -> None:
    """A column of a table has its prefix; the others are all named, and the nearest one."""
    with pytest.raises(ConfigError, match=words) as raised:
        config_files.validate_config({"evaluation": {"slices": columns}})
    assert all(column in str(raised.value) for column in ("evaluation.slices", *SLICE_COLUMNS))
    used = EvaluationConfig(slices=("mode", "column:site", "mode")).slices
    assert used == ("mode", "column:site")  # once
