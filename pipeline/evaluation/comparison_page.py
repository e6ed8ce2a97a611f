"""Write a comparison as a self-contained HTML file, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.evaluation.comparison import (
    ComparedModels,
    FlippedImage,
    p_value_text,
    points,
)
from patchline.pipeline.evaluation.html_page import render, thumbnail
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.promotion_decision import PromotionDecision
from patchline.pipeline.workspace.files.atomic_files import write_text

PAGE, COMPARISON, DECISION = "comparison.html", "comparison.json", "decision.json"
PixelsOf = Callable[[int], np.ndarray[Any, Any] | None]
"""Returns the image (H, W, C) in uint8 at a position of the comparison; None if it is missing."""

_FEW_IMAGES = 20
_CLASSES_SHOWN, _MOST_CLASSES_LISTED = 30, 500
_MOST_INDENTED_CLASSES = 100
_MARGIN = 0.3


@dataclass(frozen=True)
class _Axis:
    """Positions of a difference, its interval and zero, in percent of the width."""

    low: float
    value: float
    high: float
    zero: float


def write_comparison(
    comparison: ComparedModels,
    decision: PromotionDecision | None,
    folder: Path,
    pixels_of: PixelsOf | None,
) -> Path:
    """Write page, comparison and decision into the folder, and return the page.

    Args:
        comparison: the metrics of the two models.
        decision: whether the challenger was promoted; None shows the comparison alone.
        folder: the folder that receives `comparison.html`, `comparison.json` and `decision.json`.
        pixels_of: returns an image of the comparison; None if no image can be shown.
    """
    indent = 2 if len(comparison.changes) <= _MOST_INDENTED_CLASSES else None
    comparison.to_file(folder / COMPARISON, indent=indent)
    if decision:
        decision.to_file(folder / DECISION)
    changes = comparison.losses
    text = render(
        comparison.TEMPLATE,
        comparison=comparison,
        decision=decision,
        p_value=p_value_text,
        points=lambda share: points(share).replace("-", "\N{MINUS SIGN}"),
        axis=_axis(comparison.main.difference),
        changes=changes,
        first_changes=changes[:_CLASSES_SHOWN],
        further_changes=changes[_CLASSES_SHOWN:_MOST_CLASSES_LISTED],
        unlisted_changes=max(0, len(changes) - _MOST_CLASSES_LISTED),
        without_images=len(comparison.changes) - len(changes),
        largest_change=max([abs(change.gain) for change in changes], default=0) or 1,
        few_images=_FEW_IMAGES,
        pictured=lambda images: _with_pictures(images, pixels_of),
    )
    page = folder / PAGE
    write_text(page, text)
    return page


def _axis(difference: MetricEstimate) -> _Axis:
    """Return positions that leave a margin for the numbers at both ends of the interval."""
    low, high = min(difference.low, 0.0), max(difference.high, 0.0)
    margin = _MARGIN * max(high - low, 0.001)
    whole = high - low + 2 * margin

    def place(share: float) -> float:
        return round(100 * (share - low + margin) / whole, 2)

    return _Axis(place(difference.low), place(difference.value), place(difference.high), place(0.0))


def _with_pictures(
    flipped: tuple[FlippedImage, ...], pixels_of: PixelsOf | None
) -> list[tuple[FlippedImage, str]]:
    """Return each image with its data URI, which is empty if the image is missing."""
    shown = []
    for image in flipped:
        pixels_HWC = pixels_of(image.position) if pixels_of else None
        shown.append((image, "" if pixels_HWC is None else thumbnail(pixels_HWC)))
    return shown
