"""The linear map of a patch embedding, if it is one: found by its layers, proved by its outputs.

Shapes: C channels, H height, W width, n patches, D embedding; p, q height and width of a patch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

_TOLERANCE = 1e-3


class PatchProjection(NamedTuple):
    """Patch i becomes `weight_DCpq` times its pixels, plus `bias_D`."""

    weight_DCpq: torch.Tensor
    bias_D: torch.Tensor
    flat_nP: torch.Tensor
    """The flattened patches of the image, row by row; P = C p q."""


def projection_of(
    embedding: nn.Module, input_CHW: torch.Tensor, tokens_nD: torch.Tensor, grid: tuple[int, int]
) -> PatchProjection | None:
    """Return the linear map from separate patches to tokens, if the embedding is such a map."""
    channels, height, width = input_CHW.shape
    rows, columns = grid
    if height % rows or width % columns:
        return None
    size = (height // rows, width // columns)
    flat_nP = functional.unfold(input_CHW[None], size, stride=size)[0].T
    embed_dim = tokens_nD.shape[1]
    for weight, bias in _candidates(embedding, size):
        if weight.numel() != embed_dim * channels * size[0] * size[1]:
            continue
        weight_DCpq = weight.detach().reshape(embed_dim, channels, *size)
        bias_D = torch.zeros(embed_dim) if bias is None else bias.detach()
        found_nD = flat_nP @ weight_DCpq.flatten(1).T + bias_D
        if torch.allclose(found_nD, tokens_nD, atol=_TOLERANCE, rtol=_TOLERANCE):
            return PatchProjection(weight_DCpq, bias_D, flat_nP)
    return None


def _candidates(
    embedding: nn.Module, size: tuple[int, int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    for module in embedding.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            yield module.weight, module.bias
    resized: Any = getattr(embedding, "resized_kernel", None)  # FlexiViT stores another size
    if resized is not None:
        bias: Any = getattr(embedding, "bias", None)
        yield resized(size[0]), bias
