"""Conformance checks of a patch embedding: `images_BCHW -> PatchTokens`.

Shapes: B batch, C channels, H height, W width, N tokens, D embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from patchline.pipeline.plugin_system.contract.checks import Rule, require
from patchline.pipeline.plugin_system.contract.module_checks import (
    NUM_CLASSES,
    ImageShape,
    ModuleChecks,
)
from patchline.plugin_api import (
    ConfigError,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
    PluginConfig,
)

_EMBED_DIM = 32
_IMAGES = 16


class PatchEmbeddingChecks(ModuleChecks):
    """Conformance checks of a patch embedding with the given settings."""

    def __init__(self, plugin: PatchEmbeddingPlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        return [("returns_patch_tokens", self.returns_patch_tokens), *super().rules()]

    def build(self, shape: ImageShape) -> nn.Module:
        """Build the embedding, wrapped so that it returns only its tokens."""
        return _Tokens(self._embedding(shape))

    def learner(self, shape: ImageShape) -> nn.Module:
        """Build a linear classifier of the averaged tokens."""
        return nn.Sequential(self.build(shape), _Average(), nn.Linear(_EMBED_DIM, NUM_CLASSES))

    @torch.no_grad()
    def returns_patch_tokens(self) -> None:
        """It returns tokens (B, N, D) and their grid; the grid is known before any image."""
        for shape in (self.usual_shape(3), self.usual_shape(1), self._oblong_shape()):
            torch.manual_seed(0)
            embedding: Any = self._embedding(shape).eval()
            grid: Any = getattr(embedding, "grid", None)
            require(
                _is_grid(grid),
                f"Its attribute grid is {grid!r}. Set it to (rows, columns), two positive "
                "integers, when it is built.",
            )
            patches = embedding(shape.images(2))
            require(
                isinstance(patches, PatchTokens),
                f"It returns {type(patches).__name__}. Return PatchTokens(tokens_BND, grid).",
            )
            rows, columns = grid
            expected = (2, rows * columns, _EMBED_DIM)
            require(
                tuple(patches.tokens_BND.shape) == expected,
                f"Its tokens have the shape {tuple(patches.tokens_BND.shape)}. For 2 images, a "
                f"grid of {rows}x{columns} and D = {_EMBED_DIM}, {expected} is expected.",
            )
            require(
                tuple(patches.grid) == tuple(grid),
                f"It returns the grid {patches.grid}, but its attribute grid is {grid}.",
            )
            require(
                patches.tokens_BND.dtype == torch.float32,
                f"Its tokens are {patches.tokens_BND.dtype}. Keep float32.",
            )
            self._require_row_by_row(embedding, shape)

    def _oblong_shape(self) -> ImageShape:
        """Return a shape that is wider than high, if the plugin accepts one."""
        usual = self.usual_shape()
        oblong = ImageShape(usual.channels, usual.height, 2 * usual.width)
        try:
            self._embedding(oblong)
        except ConfigError:
            return usual
        return oblong

    def _require_row_by_row(self, embedding: Any, shape: ImageShape) -> None:
        """Change the middle of the upper edge: the token that changes most must be there."""
        rows, columns = embedding.grid
        # The left half of a token: a whole one would cover two if rows and columns are swapped.
        height, width = -(-shape.height // rows), max(1, shape.width // columns // 2)
        left = columns // 2 * shape.width // columns
        images = shape.images(_IMAGES)  # many: in a single image another token may change more
        changed = images.clone()
        changed[:, :, :height, left : left + width] += 3
        before, after = embedding(images).tokens_BND, embedding(changed).tokens_BND
        most = int((after - before).norm(dim=-1).mean(dim=0).argmax())
        row, column = divmod(most, columns)
        require(
            row <= 1 and abs(column - columns // 2) <= 1,
            f"A change in the middle of the upper edge of a {shape.height}x{shape.width} image "
            f"changes token {most} most, which is at row {row}, column {column} of the "
            f"{rows}x{columns} grid. Order the tokens row by row, and set grid to (rows, columns).",
        )

    def _embedding(self, shape: ImageShape) -> nn.Module:
        settings = self.settings.resolved_for(shape.traits)
        context = PatchEmbeddingContext(*shape, embed_dim=_EMBED_DIM)
        embedding = self.plugin.build(settings, context)
        require(
            isinstance(embedding, nn.Module),
            f"It builds a {type(embedding).__name__}. Build a torch.nn.Module.",
        )
        return embedding


class _Tokens(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        patches: PatchTokens = self.embedding(images_BCHW)
        return patches.tokens_BND


class _Average(nn.Module):
    def forward(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND.mean(dim=1)


def _is_grid(grid: object) -> bool:
    return (
        isinstance(grid, tuple)
        and len(grid) == 2  # noqa: PLR2004 - rows and columns
        and all(isinstance(side, int) and side > 0 for side in grid)
    )
