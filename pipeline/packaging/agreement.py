"""Compare a package with what is reported about it, on all test images.

Shapes: N images, B images of a batch, K outputs: probabilities or features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.models.onnx_session import open_session
from patchline.pipeline.packaging.calibrated_onnx import (
    FeatureModel,
    ProbabilityModel,
    observe_model,
)
from patchline.pipeline.workspace.files.stored_images import StoredImages

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-4
"""Largest allowed difference between the package and what is reported about it: in probability, or
in a feature relative to the largest one of the batch."""
_FIRST_BATCHES = (1, 2, 7)
_PIXELS, _MOST_IMAGES = 16 * 224**2, 256
"""Of a batch; larger ones are not faster on a CPU, because they leave its caches."""


class Difference(NamedTuple):
    """An output of a package that differs most from the expected one."""

    value: float
    """Size of the difference: absolute, or relative to the largest feature; NaN if an output is not
    a number."""
    position: int
    """Position of the image among those that were compared."""
    output: int
    packaged: float
    expected: float
    beyond: int = 0
    """Number of images with a difference that is not allowed."""


def measure_reported_difference(
    file: Path,
    images: StoredImages,
    reported: pd.DataFrame,
    classes: Sequence[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> float:
    """Return the largest difference between a package's probabilities and the reported ones.

    Args:
        file: the package's ONNX file.
        images: the prepared store, uint8 (M, H, W, C).
        reported: predictions with the columns `path`, `row` of the store and `probabilities`.
        classes: names of the model's classes, in the order of its outputs.
        on_progress: called with the number of compared images, and of all.

    Raises:
        PackagingError: if a probability differs by more than 1e-4.
    """
    probabilities = list(reported["probabilities"])

    def expected(batch: slice, _: Array) -> Array:
        return np.stack(probabilities[batch])

    rows = reported["row"].to_numpy(np.int64)
    worst = _largest(file, images, rows, expected, on_progress, is_relative=False)
    if not worst.value <= TOLERANCE:  # nor if it is NaN
        path = reported["path"].iloc[worst.position]
        others = f", and so do those of {worst.beyond - 1:,} more" if worst.beyond > 1 else ""
        raise PackagingError(
            f"The packaged model gives the test image '{path}' a probability of "
            f"{worst.packaged:.6f} for the class '{classes[worst.output]}', but the report "
            f"{worst.expected:.6f}: they differ by {worst.value:.2g}, more than the {TOLERANCE:g} "
            f"allowed{others} of {len(rows):,} test images. Check with `patchline plugins check "
            "model NAME` that the model computes the same when exported, or run again with --fresh."
        )
    return worst.value


def largest_difference(
    model: ProbabilityModel | FeatureModel,
    file: Path,
    images: StoredImages,
    rows: Array,
    on_progress: Callable[[int, int], None] | None = None,
) -> float:
    """Return the largest difference between ONNX Runtime and torch.

    It is a difference in probability, or in features, relative to the largest if that is over 1.

    Args:
        model: the trained model.
        file: the ONNX file that was exported from the model.
        images: the prepared store, uint8 (M, H, W, C).
        rows: rows of the store with the images to compare on.
        on_progress: called with the number of compared images, and of all.

    Raises:
        PackagingError: if the difference exceeds 1e-4.
    """

    def expected(_: slice, pixels_BHWC: Array) -> Array:
        with torch.inference_mode():
            outputs_BK: Array = model(torch.from_numpy(pixels_BHWC)).numpy()
        return outputs_BK

    worst = _largest(file, images, rows, expected, on_progress, is_relative=True)
    if not worst.value <= TOLERANCE:
        raise PackagingError(
            f"Output {worst.output} of the packaged model is {worst.packaged:.6g} for test image "
            f"number {worst.position + 1} of {len(rows):,}, but {worst.expected:.6g} in torch: it "
            f"differs by {worst.value:.2g}; at most {TOLERANCE:g} is allowed. Check with "
            "`patchline plugins check model NAME` that the model computes the same when exported."
        )
    return worst.value


def inner_differences(
    model: ProbabilityModel, file: Path, images: StoredImages, rows: Array
) -> dict[str, float]:
    """Return how much each inner value of a package differs from torch's, by its name.

    Args:
        model: the model that was exported.
        file: the package's ONNX file.
        images: the prepared store, uint8 (M, H, W, C).
        rows: rows of the store with the images to compare on.

    Returns:
        The largest difference, relative to the largest value of the batch if that is over 1.
    """
    session = open_session(file)
    names = [output.name for output in session.get_outputs()][1:]
    largest = dict.fromkeys(names, 0.0)
    if not names:
        return largest
    with observe_model(model) as whole, torch.inference_mode():
        whole.names = tuple(names)
        for batch in _batches(len(rows), images.shape[1] * images.shape[2]):
            pixels_BHWC = np.ascontiguousarray(images[rows[batch]])
            expected = [value.numpy() for value in whole(torch.from_numpy(pixels_BHWC))[1:]]
            packaged = session.run(names, {"images": pixels_BHWC})
            for name, own, other in zip(names, packaged, expected, strict=True):
                gap = float(np.abs(own - other).max()) / max(1.0, float(np.abs(other).max()))
                largest[name] = float(np.maximum(largest[name], gap))  # NaN if any is
    return largest


def _largest(
    file: Path,
    images: StoredImages,
    rows: Array,
    expected_of: Callable[[slice, Array], Array],
    on_progress: Callable[[int, int], None] | None,
    *,
    is_relative: bool,
) -> Difference:
    session = open_session(file)
    largest, beyond = Difference(0.0, 0, 0, 0.0, 0.0), 0
    for batch in _batches(len(rows), images.shape[1] * images.shape[2]):
        pixels_BHWC = np.ascontiguousarray(images[rows[batch]])
        expected_BK = expected_of(batch, pixels_BHWC)
        packaged_BK = session.run(None, {"images": pixels_BHWC})[0]
        gaps_BK = np.abs(expected_BK - packaged_BK)
        if is_relative:
            gaps_BK = gaps_BK / max(1.0, float(np.abs(expected_BK).max()))
        worst_B = gaps_BK.max(axis=1)  # NaN if any is
        beyond += int((~(worst_B <= TOLERANCE)).sum())
        image = int(np.argmax(worst_B))  # the first NaN, if there is one
        if not np.isnan(largest.value) and not worst_B[image] <= largest.value:
            output = int(np.argmax(gaps_BK[image]))
            largest = Difference(
                float(worst_B[image]),
                batch.start + image,
                output,
                float(packaged_BK[image, output]),
                float(expected_BK[image, output]),
            )
        if on_progress and batch.stop > sum(_FIRST_BATCHES):
            on_progress(batch.stop, len(rows))
    return largest._replace(beyond=beyond)


def _batches(images: int, pixels: int) -> Iterator[slice]:
    """Yield batches of 1, 2 and 7 images first, to cover several sizes."""
    start, size = 0, min(_MOST_IMAGES, max(1, _PIXELS // pixels))
    sizes = iter(_FIRST_BATCHES)
    while start < images:
        stop = min(images, start + next(sizes, size))
        yield slice(start, stop)
        start = stop
