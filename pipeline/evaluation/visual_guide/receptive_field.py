"""Measure which pixels a token sees, whatever the patch embedding is made of.

Nothing is known about the layers: a token's influence map is the size of its gradient with respect
to each pixel, over random images and random directions of the token. So convolutions, pooling and
normalisation are all measured alike, and so are embeddings that others wrote.

Shapes: B images, C channels, H height, W width, N tokens, D embedding.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from patchline.pipeline.errors import PluginError
from patchline.plugin_api import PatchTokens

SEEN_FRACTION = 0.05
"""A pixel is seen if its influence is more than this part of the token's largest. Group norms
couple all pixels: behind many of them, as in a ResNet, each pixel has about 0.02."""

_BOX_IMAGES = 8  # enough to reach the pixels behind a ReLU or a max pooling
_MAP_BATCHES = 4  # the inner token's map is shown, so it is measured with less noise

InfluenceMap = np.ndarray[Any, np.dtype[np.float32]]


class Span(NamedTuple):
    """Pixels from `start` up to, but without, `end`, along one side of the image."""

    start: int
    end: int


class Box(NamedTuple):
    """The smallest rectangle around the pixels that a token sees, in pixels."""

    rows: Span
    columns: Span

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.rows.end - self.rows.start, self.columns.end - self.columns.start


@dataclass(frozen=True)
class ReceptiveField:
    """What the tokens of one patch embedding see of an image.

    The box of the token at (row, column) is the pixel rows that tokens of its row see, times the
    pixel columns that tokens of its column see. Only a diagonal of the grid is measured for that.
    """

    grid: tuple[int, int]
    """Rows and columns of tokens."""
    row_spans: tuple[Span, ...]
    """Pixel rows that each row of tokens sees."""
    column_spans: tuple[Span, ...]
    """Pixel columns that each column of tokens sees."""
    influence_HW: InfluenceMap
    """Influence of each pixel on the inner token, relative to the largest: 0 to 1."""

    @property
    def inner_token(self) -> tuple[int, int]:
        """Row and column of the token in the middle; the upper left one of four."""
        return (self.grid[0] - 1) // 2, (self.grid[1] - 1) // 2

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of the inner token's box."""
        return self.box(*self.inner_token).size

    @property
    def is_cut(self) -> bool:
        """Whether the inner token's box spans a side of the image, so that it may be larger."""
        height, width = self.influence_HW.shape
        rows, columns = self.size
        return (rows == height and self.grid[0] > 1) or (columns == width and self.grid[1] > 1)

    @property
    def stride(self) -> tuple[float, float]:
        """Pixels from one token's box to the next, down and across; the side for a single token."""
        height, width = self.influence_HW.shape
        return _stride(self.row_spans, height), _stride(self.column_spans, width)

    def box(self, row: int, column: int) -> Box:
        """Return the box of one token."""
        return Box(self.row_spans[row], self.column_spans[column])

    def count_map(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return for each pixel (H, W) in how many tokens' boxes it lies."""
        height, width = self.influence_HW.shape
        return np.outer(_counts(self.row_spans, height), _counts(self.column_spans, width))


@torch.enable_grad()
def measure(
    embedding: nn.Module, height: int, width: int, channels: int = 3, seed: int = 0
) -> ReceptiveField:
    """Measure what the tokens of a patch embedding see, in evaluation mode.

    The embedding and torch's global generator stay as they are. Time and memory: one forward pass
    of 8 images, and one backward pass for each row or column of tokens.

    Raises:
        PluginError: if the tokens do not fill the grid, or one of them depends on no pixel.
    """
    embedding = copy.deepcopy(embedding).eval()
    generator = torch.Generator().manual_seed(seed)
    shape = (_BOX_IMAGES, channels, height, width)
    (rows, columns), first = _forward(embedding, shape, generator)
    row_spans: list[Span | None] = [None] * rows
    column_spans: list[Span | None] = [None] * columns
    for row, column in _diagonal(rows, columns):
        box = _box(_influence(*first, row * columns + column, generator))
        row_spans[row] = _join(row_spans[row], box.rows)
        column_spans[column] = _join(column_spans[column], box.columns)
    inner = (rows - 1) // 2 * columns + (columns - 1) // 2
    maps = [_influence(*first, inner, generator)]
    del first  # its graph takes the most memory of all
    for _ in range(_MAP_BATCHES - 1):
        _, more = _forward(embedding, shape, generator)
        maps.append(_influence(*more, inner, generator))
    influence_HW = np.sqrt(np.mean(np.square(maps), axis=0))
    return ReceptiveField(
        grid=(rows, columns),
        row_spans=tuple(span for span in row_spans if span),
        column_spans=tuple(span for span in column_spans if span),
        influence_HW=(influence_HW / influence_HW.max()).astype(np.float32),
    )


def _forward(
    embedding: nn.Module, shape: tuple[int, int, int, int], generator: torch.Generator
) -> tuple[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]:
    """Return the grid, and random images with their tokens, ready for gradients."""
    images_BCHW = torch.randn(shape, generator=generator).requires_grad_()
    patches: PatchTokens = embedding(images_BCHW)
    rows, columns = patches.grid
    count = patches.tokens_BND.shape[1]
    if count != rows * columns or count == 0:
        raise PluginError(
            f"The patch embedding returned {count} tokens for a grid of {rows}x{columns}. Repair "
            "its grid."
        )
    return (rows, columns), (images_BCHW, patches.tokens_BND)


def _influence(
    images_BCHW: torch.Tensor,
    tokens_BND: torch.Tensor,
    token: int,
    generator: torch.Generator,
) -> InfluenceMap:
    """Return the influence (H, W) of each pixel on one token.

    A random direction of the token for each image makes the expected square of the gradient that
    of the whole Jacobian, at the price of one backward pass instead of D.
    """
    directions_BD = torch.randn(tokens_BND.shape[::2], generator=generator)
    gradients_BCHW = torch.zeros_like(images_BCHW)
    if tokens_BND.requires_grad:
        [gradients_BCHW] = torch.autograd.grad(
            (tokens_BND[:, token] * directions_BD).sum(),
            images_BCHW,
            retain_graph=True,
            materialize_grads=True,
        )
    influence_HW: InfluenceMap = gradients_BCHW.square().sum(1).mean(0).sqrt().numpy()
    if not influence_HW.max() > 0:
        raise PluginError(
            f"Token {token} of the patch embedding depends on no pixel of the image. Repair the "
            "embedding, or give it an image that its patches cover."
        )
    return influence_HW


def _box(influence_HW: InfluenceMap) -> Box:
    """Return the smallest rectangle around what is seen."""
    rows, columns = np.nonzero(influence_HW > SEEN_FRACTION * influence_HW.max())
    return Box(
        Span(int(rows.min()), int(rows.max()) + 1), Span(int(columns.min()), int(columns.max()) + 1)
    )


def _diagonal(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return tokens among which every row and every column of the grid occurs."""
    count = max(rows, columns)
    return [(step * rows // count, step * columns // count) for step in range(count)]


def _join(one: Span | None, other: Span) -> Span:
    return other if one is None else Span(min(one.start, other.start), max(one.end, other.end))


def _stride(spans: Sequence[Span], side: int) -> float:
    """Return the median distance of neighbours, from ends that the image's border did not cut."""
    if len(spans) == 1:
        return float(side)
    pairs = list(itertools.pairwise(spans))
    distances = [float(b.start - a.start) for a, b in pairs if a.start > 0 and b.start > 0]
    distances += [float(b.end - a.end) for a, b in pairs if a.end < side and b.end < side]
    centres = [(b.start + b.end - a.start - a.end) / 2 for a, b in pairs]
    return median(distances or centres)


def _counts(spans: Sequence[Span], side: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    places = np.arange(side)
    inside = [(places >= span.start) & (places < span.end) for span in spans]
    counts: np.ndarray[Any, np.dtype[np.int64]] = np.sum(inside, axis=0, dtype=np.int64)
    return counts
