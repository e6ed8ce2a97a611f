"""Which parts of an image an answer depends on, measured twice: by covering them, and by gradient.

Both return the rise of the cross-entropy, -log of a class's probability, for each cell of a grid
over the image. Covered pixels get the mean colour of the training images, which is 0 after
normalisation.

Shapes: B batch, C channels, H height, W width, K classes; h, w the grid of cells.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.evaluation.visual_guide.attention_statistics import rank_correlation
from patchline.pipeline.models.class_probabilities import calibrated_logits
from patchline.pipeline.models.model_description import Calibration

Array = np.ndarray[Any, Any]

MOST_CELLS = 8
"""Cells along a side of the image, at most."""
_BATCH = 8


@dataclass(frozen=True)
class Attributions:
    """How the cross-entropy of one class depends on each part of an image."""

    label: int
    """Number of the class."""
    gradient_hw: Array
    """The rise that the gradient predicts if a cell is covered: the sum of gradient times pixel."""
    occlusion_hw: Array | None
    """The rise that was measured by covering each cell; None if it was not measured."""
    probabilities_hw: Array | None
    """The probability of the class while each cell is covered."""
    seconds: float
    """What the covering took."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        rows, columns = self.gradient_hw.shape
        return rows, columns

    @property
    def agreement(self) -> float | None:
        """Rank correlation of the two maps, from -1 to 1; None if there is none."""
        if self.occlusion_hw is None:
            return None
        return rank_correlation(self.gradient_hw, self.occlusion_hw)


def cell_grid(size: tuple[int, int], patches: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the grid of cells: whole patches, at most 8 along a side."""

    def cells(side: int, patches_there: int) -> int:
        fitting = [n for n in range(1, MOST_CELLS + 1) if patches_there % n == 0]
        aligned = fitting[-1] > MOST_CELLS // 2 or patches_there <= MOST_CELLS
        return fitting[-1] if aligned else min(side, MOST_CELLS - 1)

    (height, width), (rows, columns) = size, patches or size
    return cells(height, rows), cells(width, columns)


def attribute(
    model: nn.Module,
    input_CHW: torch.Tensor,
    label: int,
    grid: tuple[int, int],
    *,
    calibration: Calibration = UNRECORDED,
    occlusion: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Attributions:
    """Return how the cross-entropy of a class depends on each cell of a grid.

    Args:
        model: in evaluation mode.
        input_CHW: the normalised image.
        label: number of the class.
        grid: rows and columns of cells.
        calibration: of the logits.
        occlusion: whether to cover the cells, which runs the model once for each.
        on_progress: called with the cells that are done, and all.
    """

    def losses(images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK = calibrated_logits(model(images_BCHW), calibration)
        if isinstance(calibration, LabelCalibration):
            return functional.softplus(-logits_BK[:, label])
        targets_B = torch.full((len(images_BCHW),), label)
        return functional.cross_entropy(logits_BK, targets_B, reduction="none")

    [gradient_hw] = _by_gradient(losses, input_CHW[None], grid)
    if not occlusion:
        return Attributions(label, gradient_hw, None, None, 0.0)
    start = time.perf_counter()
    occluded_hw, before = _by_occlusion(losses, input_CHW, grid, on_progress)
    return Attributions(
        label=label,
        gradient_hw=gradient_hw,
        occlusion_hw=occluded_hw - before,
        probabilities_hw=np.exp(-occluded_hw),
        seconds=time.perf_counter() - start,
    )


def gradient_maps(
    model: nn.Module,
    inputs_BCHW: torch.Tensor,
    labels_B: torch.Tensor | None,
    grid: tuple[int, int],
    *,
    is_multi_label: bool = False,
) -> Array:
    """Return the rise of the loss that the gradient predicts if a cell is covered, (B, h, w).

    Args:
        model: in evaluation mode; its images do not affect each other.
        inputs_BCHW: normalised images.
        labels_B: number of the class of each; None for the predicted ones.
        grid: rows and columns of cells.
        is_multi_label: whether each label's probability is a sigmoid of its own.
    """

    def losses(images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK = model(images_BCHW).float()
        targets_B = logits_BK.argmax(dim=1) if labels_B is None else labels_B
        if is_multi_label:
            return functional.softplus(-logits_BK.gather(1, targets_B[:, None])[:, 0])
        return functional.cross_entropy(logits_BK, targets_B, reduction="none")

    return _by_gradient(losses, inputs_BCHW, grid)


def covered(input_CHW: torch.Tensor, cells_hw: Array) -> torch.Tensor:
    """Return the normalised image with the marked cells of a grid in the mean colour."""
    rows, columns = cells_hw.shape
    _, height, width = input_CHW.shape
    tall, wide = _spans(height, rows), _spans(width, columns)
    result_CHW = input_CHW.clone()
    for row, column in np.argwhere(cells_hw):
        result_CHW[:, tall[row], wide[column]] = 0
    return result_CHW


def _by_gradient(
    losses: Callable[[torch.Tensor], torch.Tensor], inputs_BCHW: torch.Tensor, grid: tuple[int, int]
) -> Array:
    """Return the rises of the loss (B, h, w)."""
    images_BCHW = inputs_BCHW.clone().requires_grad_()
    with torch.enable_grad():
        [gradient_BCHW] = torch.autograd.grad(losses(images_BCHW).sum(), images_BCHW)
    # Covering a pixel changes it by minus its value, and so the loss by about minus the product.
    rise_BHW = -(gradient_BCHW * images_BCHW.detach()).sum(dim=1).numpy()
    rows, columns = grid
    sums_Bhw = np.zeros((len(rise_BHW), *grid))
    for row, tall in enumerate(_spans(rise_BHW.shape[1], rows)):
        for column, wide in enumerate(_spans(rise_BHW.shape[2], columns)):
            sums_Bhw[:, row, column] = rise_BHW[:, tall, wide].sum(axis=(1, 2))
    return sums_Bhw


def _by_occlusion(
    losses: Callable[[torch.Tensor], torch.Tensor],
    input_CHW: torch.Tensor,
    grid: tuple[int, int],
    on_progress: Callable[[int, int], None] | None,
) -> tuple[Array, float]:
    """Return the loss with each cell covered, and with none."""
    rows, columns = grid
    cells = np.eye(rows * columns, dtype=bool).reshape(-1, rows, columns)
    effects: list[float] = []
    with torch.inference_mode():
        before = float(losses(input_CHW[None])[0])
        for start in range(0, len(cells), _BATCH):
            batch = cells[start : start + _BATCH]
            covered_BCHW = torch.stack([covered(input_CHW, cell_hw) for cell_hw in batch])
            effects += losses(covered_BCHW).tolist()
            if on_progress:
                on_progress(len(effects), len(cells))
    return np.array(effects).reshape(grid), before


def _spans(side: int, parts: int) -> list[slice]:
    edges = [round(part * side / parts) for part in range(parts + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(edges)]
