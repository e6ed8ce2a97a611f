"""A package that does not compute what is reported about it is refused, whichever image differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.packaging.agreement import (
    TOLERANCE,
    largest_difference,
    measure_reported_difference,
)
from tests.pipeline.conftest import CLASSES, Exported, random_pixels

Array = np.ndarray[Any, Any]
IMAGES = 400  # more than one batch of small images


def _reported(exported: Exported, images: Array) -> pd.DataFrame:
    with torch.inference_mode():
        probabilities_NK = exported.model(torch.from_numpy(images)).numpy()
    rows = np.arange(len(images))[::-1]  # of the store, in another order
    paths = [f"{row}.png" for row in rows]
    table = {"path": paths, "row": rows, "probabilities": list(probabilities_NK[rows])}
    return pd.DataFrame(table)


def _compared(exported: Exported, images: Array, reported: pd.DataFrame) -> float:
    return measure_reported_difference(exported.onnx_file, images, reported, CLASSES)


@pytest.mark.parametrize("count", [1, IMAGES])
def test_a_faithful_export_differs_by_rounding_alone(exported_rgb: Exported, count: int) -> None:
    """All images are compared, each with its own reported probabilities."""
    images = random_pixels(count)
    assert 0 <= _compared(exported_rgb, images, _reported(exported_rgb, images)) < 1e-5
    rows = np.arange(count)
    assert 0 <= largest_difference(exported_rgb.model, exported_rgb.onnx_file, images, rows) < 1e-5


@pytest.mark.parametrize("position", [0, IMAGES - 1])
def test_one_image_of_many_is_found_and_named(exported_rgb: Exported, position: int) -> None:
    """The sentence has the image, the class, both values, the tolerance and what to do."""
    images = random_pixels(IMAGES)
    reported = _reported(exported_rgb, images)
    probabilities = list(reported["probabilities"])
    changed = probabilities[position].copy()
    changed[1] += 2.5 * TOLERANCE
    probabilities[position] = changed
    with pytest.raises(PackagingError) as raised:
        _compared(exported_rgb, images, reported.assign(probabilities=probabilities))
    text = str(raised.value)
    named = f"'{reported['path'].iloc[position]}'", f"'{CLASSES[1]}'", f"{changed[1]:.6f}"
    for words in (*named, "differ by 0.00025", "the 0.0001 allowed of 400 test images"):
        assert words in text
    probabilities[7] = probabilities[7][::-1]
    with pytest.raises(PackagingError, match="and so do those of 1 more of 400"):
        _compared(exported_rgb, images, reported.assign(probabilities=probabilities))


def test_answers_that_are_not_numbers_are_refused(exported_rgb: Exported) -> None:
    """NaN does not count as no difference, and no later image hides it."""
    images = random_pixels(30)
    reported = _reported(exported_rgb, images)
    probabilities = list(reported["probabilities"])
    probabilities[4] = np.full(len(CLASSES), np.nan, np.float32)
    with pytest.raises(PackagingError, match=r"'25\.png' .* nan"):
        _compared(exported_rgb, images, reported.assign(probabilities=probabilities))
