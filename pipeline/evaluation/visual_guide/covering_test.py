"""Test whether maps over an image mean anything, by covering what they point at.

For each image, the most important fifth of its cells is covered with the mean colour, and a random
fifth likewise; a map means something if the former costs more probability (the deletion test of
arXiv 1806.07421, section 4, with one fraction).

Shapes: B batch, C channels, H height, W width, K classes; h, w the grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats
from patchline.pipeline.evaluation.visual_guide.attention_maps import (
    attention_maps,
    cell_grid,
    covered,
    gradient_maps,
)
from patchline.pipeline.evaluation.visual_guide.covering_result import (
    CoveredByMap,
    CoveringTest,
    MapKind,
)
from patchline.pipeline.evaluation.visual_guide.traced_image import Pixels
from patchline.pipeline.models.calibrated_models import class_probabilities
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.model_description import ModelDescription

Array = np.ndarray[Any, Any]

COVERED_SHARE = 0.2
_FEWEST_IMAGES, _FEWEST_CELLS = 2, 4
_RANDOM_DRAWS = 4
_TOGETHER = 32


def covering_test(
    model: nn.Module, description: ModelDescription, images: Sequence[Pixels], seed: int
) -> CoveringTest | None:
    """Test the model's gradient and, if it can be recorded, its attention.

    Args:
        model: in evaluation mode, on the CPU.
        description: of the model, with its temperature.
        images: uint8 (H, W, C) as they enter the model; at least two.
        seed: draws the random cells.

    Returns:
        The result; None with too few images, or images too small to be divided.
    """
    if len(images) < _FEWEST_IMAGES:
        return None
    maps = attention_maps(model, description, images)
    attention = maps if maps.kind == "attention" else None
    patches = attention.maps_Bhw.shape[1:] if attention else None
    grid = cell_grid(images[0].shape[:2], patches)
    cells = grid[0] * grid[1]
    if cells < _FEWEST_CELLS:
        return None
    marked = max(1, round(COVERED_SHARE * cells))
    cover = _Cover(model, description, grid, marked, np.random.default_rng(seed))
    curves = [
        cover.probabilities(
            images[start : start + _TOGETHER], attention.maps_Bhw[start:] if attention else None
        )
        for start in range(0, len(images), _TOGETHER)
    ]
    before_B, random_B, *by_map = (np.concatenate(column) for column in zip(*curves, strict=True))
    kinds: list[MapKind] = ["gradient", "attention"]
    return CoveringTest(
        images=len(images),
        cells=cells,
        covered_cells=marked,
        before=float(before_B.mean()),
        random=float(random_B.mean()),
        maps=tuple(
            CoveredByMap(
                kind=kind,
                probability=float(after_B.mean()),
                advantage=mean_of_repeats(list(random_B - after_B), (-1.0, 1.0)),
            )
            for kind, after_B in zip(kinds, by_map, strict=False)
        ),
    )


@dataclass(frozen=True)
class _Cover:
    """Covers cells of images, and measures what that costs."""

    model: nn.Module
    description: ModelDescription
    grid: tuple[int, int]
    """Rows and columns of cells."""
    marked: int
    """Cells that are covered in an image."""
    generator: np.random.Generator
    """Draws the random cells."""

    def probabilities(self, images: Sequence[Pixels], attention_Bhw: Array | None) -> list[Array]:
        """Return the probabilities (B) of the predicted classes: before, random, by each map."""
        inputs_BCHW = normalised(torch.from_numpy(np.stack(images)), self.description.image)
        before_BK = self._probabilities(inputs_BCHW)
        labels_B = before_BK.argmax(dim=1)

        def after(importance_of: Callable[[int], Array]) -> Array:
            masks = [_largest(importance_of(place), self.marked) for place in range(len(images))]
            changed = [covered(image, mask) for image, mask in zip(inputs_BCHW, masks, strict=True)]
            return _own(self._probabilities(torch.stack(changed)), labels_B)

        gradients_Bhw = gradient_maps(
            self.model,
            inputs_BCHW,
            labels_B,
            self.grid,
            is_multi_label=self.description.is_multi_label,
        )
        draws = [
            after(lambda _place: self.generator.random(self.grid)) for _ in range(_RANDOM_DRAWS)
        ]
        columns = [
            _own(before_BK, labels_B),
            np.mean(draws, axis=0),
            after(gradients_Bhw.__getitem__),
        ]
        if attention_Bhw is not None:
            columns.append(after(lambda place: _summed(attention_Bhw[place], self.grid)))
        return columns

    def _probabilities(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return class_probabilities(self.model(images_BCHW), self.description.logit_calibration)


def _own(probabilities_BK: torch.Tensor, labels_B: torch.Tensor) -> Array:
    own: Array = probabilities_BK.gather(1, labels_B[:, None])[:, 0].double().numpy()
    return own


def _largest(importance_hw: Array, number: int) -> Array:
    """Return which cells are among the most important ones, (h, w) of bool; ties by place."""
    order = np.argsort(-importance_hw.ravel(), kind="stable")
    mask = np.zeros(importance_hw.size, dtype=bool)
    mask[order[:number]] = True
    return mask.reshape(importance_hw.shape)


def _summed(map_hw: Array, grid: tuple[int, int]) -> Array:
    """Return the sums over the patches of each cell; a cell without one takes the nearest patch."""
    rows, columns = (
        [slice(part * side // parts, max(part * side // parts + 1, (part + 1) * side // parts))
         for part in range(parts)]
        for side, parts in zip(map_hw.shape, grid, strict=True)
    )  # fmt: skip
    return np.array([[map_hw[row, column].sum() for column in columns] for row in rows])
