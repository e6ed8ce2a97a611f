"""Where a model looked: maps over an image, from its attention, its gradients and covered parts.

What an answer depends on is measured twice, by covering parts and by the gradient. Both give the
rise of the cross-entropy, -log of a class's probability, for each cell of a grid over the image.
Covered pixels get the mean colour of the training images, which is 0 after normalisation.

Whether maps mean anything is tested by covering, too: for each image, the most important fifth of
its cells is covered with the mean colour, and a random fifth likewise; a map means something if the
former costs more probability (the deletion test of arXiv 1806.07421, section 4, with one fraction).

Shapes: B batch, C channels, H height, W width, K classes, L layers, A attention heads, N tokens, n
patches among them, P tokens before the patches; h, w the grid of patches, or of cells.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.evaluation.visual_guide.covering_result import (
    CoveredByMap,
    CoveringTest,
    MapKind,
)
from patchline.pipeline.evaluation.visual_guide.traced_image import Pixels, trace
from patchline.pipeline.models.calibrated_models import calibrate_logits, class_probabilities
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.layers.intermediate_values import record_values
from patchline.pipeline.models.model_description import Calibration, ModelDescription

Array = np.ndarray[Any, Any]


def rollout(attention_LANN: Array) -> Array:
    """Return how much of each input token reaches each output token (arXiv 2005.00928, section 3).

    The heads of a layer are averaged; the identity is added for the residual connection, and the
    rows are divided by their sum; the layers are multiplied. Row i belongs to output token i and
    sums to 1: (N, N).
    """
    tokens = attention_LANN.shape[-1]
    flow_NN = np.eye(tokens, dtype=np.float64)
    for weights_NN in attention_LANN.mean(axis=1, dtype=np.float64):
        mixed_NN = weights_NN + np.eye(tokens)
        flow_NN = mixed_NN / mixed_NN.sum(axis=1, keepdims=True) @ flow_NN
    return flow_NN


def mean_distances(attention_LANN: Array, grid: tuple[int, int]) -> Array:
    """Return how far each head looks on average, in patches (arXiv 2010.11929, appendix D.7).

    The distance from a patch to every patch is averaged with the attention weights, then over the
    patches. Tokens before the patches have no place and are left out: (L, A).
    """
    rows, columns = grid
    first = attention_LANN.shape[-1] - rows * columns
    y, x = np.divmod(np.arange(rows * columns), columns)
    distances_nn = np.hypot(y[:, None] - y, x[:, None] - x)
    between_LAnn = attention_LANN[:, :, first:, first:]
    totals_LAn = between_LAnn.sum(axis=-1, dtype=np.float64)
    reached_LAn = (between_LAnn * distances_nn).sum(axis=-1)
    distances_LA: Array = (reached_LAn / np.maximum(totals_LAn, 1e-12)).mean(axis=-1)
    return distances_LA


def most_selective_head(weights_AN: Array) -> int:
    """Return the head whose weights are the furthest from uniform, by their entropy."""
    entropy_A = -(weights_AN * np.log(np.maximum(weights_AN, 1e-12))).sum(axis=1)
    return int(entropy_A.argmin())


def rank_correlation(first: Array, second: Array) -> float | None:
    """Return Spearman's rank correlation of two maps; None if one of them is constant."""
    ranks = pd.DataFrame([first.ravel(), second.ravel()]).rank(axis=1).to_numpy()
    if np.ptp(ranks, axis=1).min() == 0:
        return None
    return float(np.corrcoef(ranks)[0, 1])


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
    """Duration of the covering, in seconds."""

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
        model: the model, in evaluation mode.
        input_CHW: the normalised image.
        label: number of the class.
        grid: rows and columns of cells.
        calibration: the calibration of the logits.
        occlusion: whether to cover the cells, which runs the model once for each.
        on_progress: called with the number of cells that are done, and of all.
    """

    def losses(images_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BK = calibrate_logits(model(images_BCHW), calibration)
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
        model: the model, in evaluation mode; its images do not affect each other.
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


def cover_cells(input_CHW: torch.Tensor, cells_hw: Array) -> torch.Tensor:
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
            covered_BCHW = torch.stack([cover_cells(input_CHW, cell_hw) for cell_hw in batch])
            effects += losses(covered_BCHW).tolist()
            if on_progress:
                on_progress(len(effects), len(cells))
    return np.array(effects).reshape(grid), before


def _spans(side: int, parts: int) -> list[slice]:
    edges = [round(part * side / parts) for part in range(parts + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(edges)]


_MOST_WEIGHTS = 20_000_000
"""Attention weights in memory at once, about."""


@dataclass(frozen=True)
class AttentionMaps:
    """For each image, how much each patch counted."""

    kind: MapKind
    """`attention` is the rollout (arXiv 2005.00928) of the token that is classified, or the mean
    over the patches; `gradient` is gradient times pixel, where it supports the predicted class."""
    maps_Bhw: Array
    """How much each patch counted, at least 0."""


@dataclass(frozen=True)
class _Inside:
    """The tokens of a model whose attention can be recorded."""

    grid: tuple[int, int]
    prefix_tokens: int
    has_class_token: bool
    weights: int
    """Number of attention weights for an image, in all layers."""


def attention_maps(
    model: nn.Module, description: ModelDescription, images: Sequence[Pixels]
) -> AttentionMaps:
    """Return where a model looked in some images, uint8 (H, W, C) as they enter the model.

    A model whose attention cannot be recorded gets maps of its gradient.
    """
    inside = _inside(model, description, images[0])
    if inside is None:
        return _of_gradient(model, description, images, None)
    together = max(1, _MOST_WEIGHTS // inside.weights)
    layers = []
    for start in range(0, len(images), together):
        inputs_BCHW = normalize(_batch(images[start : start + together]), description.image)
        with torch.inference_mode(), record_values(model) as values:
            model(inputs_BCHW)
        attention_LBANN = np.stack(
            [block.attention.weights_BHNN.numpy() for block in values.blocks]
        )
        layers += [
            _patch_shares(attention_LBANN[:, place], inside) for place in range(len(inputs_BCHW))
        ]
    return AttentionMaps("attention", np.stack(layers))


def label_maps(
    model: nn.Module, description: ModelDescription, images: Sequence[Pixels], labels_B: Array
) -> AttentionMaps:
    """Return which parts of some images support one label of each, by the gradient.

    Attention is the same for all labels of an image, so that it explains none of them.
    """
    return _of_gradient(model, description, images, labels_B)


def _of_gradient(
    model: nn.Module,
    description: ModelDescription,
    images: Sequence[Pixels],
    labels_B: Array | None,
) -> AttentionMaps:
    grid = cell_grid(images[0].shape[:2])
    maps = [
        gradient_maps(
            model,
            normalize(_batch([image]), description.image),
            None if labels_B is None else torch.from_numpy(labels_B[place : place + 1]),
            grid,
            is_multi_label=description.is_multi_label,
        )
        for place, image in enumerate(images)
    ]
    return AttentionMaps("gradient", np.maximum(np.concatenate(maps), 0))


def _inside(model: nn.Module, description: ModelDescription, image: Pixels) -> _Inside | None:
    transformer = trace(model, description, image).transformer
    if transformer is None:
        return None
    return _Inside(
        transformer.grid,
        len(transformer.prefix),
        "class token" in transformer.prefix,
        transformer.attention().size,
    )


def _batch(images: Sequence[Pixels]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images))


def _patch_shares(attention_LANN: Array, inside: _Inside) -> Array:
    """Return the share of each patch in the token that is classified."""
    rollout_NN = rollout(attention_LANN)
    first = inside.prefix_tokens
    row_N = rollout_NN[0] if inside.has_class_token else rollout_NN[first:].mean(axis=0)
    seen_hw: Array = row_N[first:].reshape(inside.grid)
    return seen_hw


COVERED_SHARE = 0.2
_FEWEST_IMAGES, _FEWEST_CELLS = 2, 4
_RANDOM_DRAWS = 4
_TOGETHER = 32


def run_covering_test(
    model: nn.Module, description: ModelDescription, images: Sequence[Pixels], seed: int
) -> CoveringTest | None:
    """Test the model's gradient and, if it can be recorded, its attention.

    Args:
        model: the model, in evaluation mode and on the CPU.
        description: the model's description, with its temperature.
        images: images as they enter the model, uint8 (H, W, C); at least two.
        seed: seed of the random cells.

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
    """Generator of the random cells."""

    def probabilities(self, images: Sequence[Pixels], attention_Bhw: Array | None) -> list[Array]:
        """Return the probabilities (B) of the predicted classes: before, random, by each map."""
        inputs_BCHW = normalize(torch.from_numpy(np.stack(images)), self.description.image)
        before_BK = self._probabilities(inputs_BCHW)
        labels_B = before_BK.argmax(dim=1)

        def after(importance_of: Callable[[int], Array]) -> Array:
            masks = [_largest(importance_of(place), self.marked) for place in range(len(images))]
            changed = [
                cover_cells(image, mask) for image, mask in zip(inputs_BCHW, masks, strict=True)
            ]
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
            columns.append(after(lambda place: _sum_by_cell(attention_Bhw[place], self.grid)))
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


def _sum_by_cell(map_hw: Array, grid: tuple[int, int]) -> Array:
    """Return the sums over the patches of each cell; a cell without one takes the nearest patch."""
    rows, columns = (
        [slice(part * side // parts, max(part * side // parts + 1, (part + 1) * side // parts))
         for part in range(parts)]
        for side, parts in zip(map_hw.shape, grid, strict=True)
    )  # fmt: skip
    return np.array([[map_hw[row, column].sum() for column in columns] for row in rows])
