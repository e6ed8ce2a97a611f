"""Slices divide all images, each into one part of a column, and mark what stands out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from patchline.pipeline.evaluation.config import SLICE_COLUMNS, EvaluationConfig
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.slices import Slice, slices, undivided
from patchline.pipeline.metrics.intervals import proportion
from tests.pipeline.evaluation.conftest import made_of, random_predictions


def _by(predictions: Predictions, column: str, **settings: Any) -> tuple[Slice, ...]:
    return slices(predictions, EvaluationConfig(slices=(column,), **settings))


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
    table = predictions.table
    right = int((table["predicted"] == table["label"]).sum())
    found = slices(predictions, EvaluationConfig(slices=tuple(SLICE_COLUMNS)))
    assert {part.column for part in found} == set(SLICE_COLUMNS)
    for column in SLICE_COLUMNS:
        parts = [part for part in found if part.column == column]
        assert sum(part.images for part in parts) == 400
        assert sum(round(part.accuracy.value * part.images) for part in parts) == right
        assert len({part.value for part in parts}) == len(parts)


def test_the_accuracy_of_a_part_is_that_of_its_images() -> None:
    """Value and interval of a part are the proportion of its own images."""
    predictions = _answers([True, True, False, False, False], mode=["L", "L", "L", "RGB", "RGB"])
    grey, colour = _by(predictions, "mode")
    assert (grey.value, colour.value) == ("L", "RGB")
    assert grey.accuracy == proportion(2, 3)
    assert colour.accuracy == proportion(0, 2)


def test_numbers_are_cut_into_quarters_with_their_bounds() -> None:
    """Many different numbers make four parts, named by what they hold."""
    parts = _by(_answers([True] * 100, width=list(range(1, 101))), "width")
    assert [part.images for part in parts] == [25, 25, 25, 25]
    values = ["1 to 25 px", "26 to 50 px", "51 to 75 px", "76 to 100 px"]
    assert [part.value for part in parts] == values


def test_few_numbers_stay_as_they_are() -> None:
    """Up to four different numbers are parts of their own."""
    parts = _by(_answers([True] * 6, height=[64, 32, 32, 96, 64, 32]), "height")
    assert [(part.value, part.images) for part in parts] == [
        ("32 px", 3),
        ("64 px", 2),
        ("96 px", 1),
    ]


def test_a_number_that_most_images_have_is_one_part() -> None:
    """Quarters that fall together are not shown twice."""
    widths = [32] * 90 + list(range(40, 50))
    parts = _by(_answers([True] * 100, width=widths), "width")
    assert [(part.value, part.images) for part in parts] == [("32 px", 90), ("40 to 49 px", 10)]


def test_the_size_is_the_shorter_side() -> None:
    """Wide and high images of the same shorter side are one part."""
    predictions = _answers([True] * 3, width=[10, 30, 20], height=[30, 10, 40])
    parts = _by(predictions, "size")
    assert [(part.value, part.images) for part in parts] == [("10 px", 2), ("20 px", 1)]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(10, 20, "10 bytes"), (1500, 2500, "1.5 kB"), (2_000_000, 3_400_000, "2.0 MB")],
)
def test_bytes_are_readable(low: int, high: int, text: str) -> None:
    """File sizes carry a unit that fits."""
    first, _ = _by(_answers([True, True], bytes=[low, high]), "bytes")
    assert first.value == text


def test_rare_values_are_put_together() -> None:
    """Of many values the eleven most frequent are shown, and the others counted together."""
    groups = [f"g{k:02d}" for k in range(20) for _ in range(20 - k)]
    parts = _by(_answers([True] * len(groups), group=groups), "group")
    assert [part.value for part in parts] == [*(f"g{k:02d}" for k in range(11)), "9 others"]
    assert parts[-1].images == sum(20 - k for k in range(11, 20))


def test_small_and_unusual_parts_are_marked() -> None:
    """Parts with few images are small; parts whose interval leaves the overall one out differ."""
    right = [True] * 90 + [False] * 35 + [True] * 5
    groups = ["good"] * 90 + ["bad"] * 30 + ["few"] * 10
    parts = {part.value: part for part in _by(_answers(right, group=groups), "group")}
    assert {name: part.small for name, part in parts.items()} == {
        "good": False,
        "bad": False,
        "few": True,
    }
    assert parts["good"].differs
    assert parts["bad"].differs
    assert not parts["few"].differs
    assert all(
        not part.small for part in _by(_answers(right, group=groups), "group", small_sample=1)
    )


def test_a_column_that_is_the_same_for_all_is_no_division() -> None:
    """It has no parts, and is named with its value."""
    predictions = _answers([True, False], mode="L")
    config = EvaluationConfig(slices=("group", "mode", "size"))
    assert slices(predictions, config) == ()
    assert undivided(predictions.table, config) == {
        "group": "none given",
        "mode": "L",
        "size": "32 px",
    }
