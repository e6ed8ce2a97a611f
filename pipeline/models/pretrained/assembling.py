"""Assemble the parts of a file into the parameters of our models.

Shapes: N tokens, D embedding, R registers, C channels; h, w a patch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from patchline.pipeline.models.pretrained.layout import (
    Layout,
    NamedTensor,
    Parts,
    UnsupportedWeightsError,
)

CLASS_TOKEN = "class_token.token_11D"  # noqa: S105
POSITIONS = "position_embedding.positions_1ND"
REGISTERS = "registers.registers_1RD"
KERNEL = "patch_embedding.projection.weight"
DISTILLATION = "distillation_token"
_BLOCK = re.compile(r"blocks\.(\d+)\.")
_MAY_LACK_BIAS = re.compile(
    r"patch_embedding\.projection|head(\.hidden|\.output)?"
    r"|blocks\.\d+\.(attention\.(query_key_value|projection)|mlp\.(expand|contract))"
)


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a Vision Transformer, from the shapes of its parts."""

    embed_dim: int
    depth: int
    mlp_dim: int
    patch_size: int
    channels: int


def dimensions_of(parts: Parts) -> Dimensions:
    """Read the dimensions off the shapes.

    Raises:
        UnsupportedWeightsError: if a part is missing, or the patches are not square.
    """
    kernel = _require(parts, KERNEL)
    if kernel.tensor.ndim != 4 or kernel.tensor.shape[2] != kernel.tensor.shape[3]:  # noqa: PLR2004
        raise UnsupportedWeightsError(
            f"{_quote_sources(kernel)} is not a kernel of square patches. Choose weights with "
            "square patches"
        )
    embed_dim, channels, patch_size, _ = kernel.tensor.shape
    blocks = {int(match[1]) for name in parts if (match := _BLOCK.match(name))}
    depth = 1 + max(blocks, default=-1)
    expand = _require(parts, "blocks.0.mlp.expand.weight")
    return Dimensions(embed_dim, depth, expand.tensor.shape[0], patch_size, channels)


def grid_of(positions: int, pixels: tuple[int, int] | None, patch_size: int) -> tuple[int, int]:
    """Return the grid with this many positions: that of the image if it fits, else a square one.

    Raises:
        UnsupportedWeightsError: if there is no such grid.
    """
    if pixels:
        rows, columns = pixels[0] // patch_size, pixels[1] // patch_size
        if rows * columns == positions:
            return rows, columns
    side = math.isqrt(max(positions, 0))
    if side == 0 or side * side != positions:
        raise UnsupportedWeightsError(
            f"{positions} positions of patches do not form a square grid. Put the model's "
            "config.json with its image_size beside the file"
        )
    return side, side


def join_projections(parts: Parts) -> None:
    """Join the queries, keys and values of each attention layer; a missing bias is zero."""
    layers = {name.rsplit(".", 2)[0] for name in parts if name.endswith(".attention.q.weight")}
    for layer in sorted(layers):
        weights = [_require(parts, f"{layer}.{each}.weight") for each in "qkv"]
        parts[f"{layer}.query_key_value.weight"] = _join(weights)
        biases = [parts.get(f"{layer}.{each}.bias") for each in "qkv"]
        if any(biases):
            parts[f"{layer}.query_key_value.bias"] = _join(
                bias or NamedTensor(torch.zeros(weight.tensor.shape[0]), ())
                for bias, weight in zip(biases, weights, strict=True)
            )
        for each in "qkv":
            del parts[f"{layer}.{each}.weight"]
            parts.pop(f"{layer}.{each}.bias", None)


def place_tokens(
    parts: Parts, layout: Layout, dimensions: Dimensions, pixels: tuple[int, int] | None
) -> tuple[int, int]:
    """Bring class token, registers and positions into the form of our models; return the grid.

    Ours add positions to the class token and the patches, and none to registers: a register's
    position is added to its value. The distillation token of DeiT becomes a register, because no
    later layer tells the two apart.

    Raises:
        UnsupportedWeightsError: if the tokens or positions do not fit one of our models.
    """
    for name in (CLASS_TOKEN, POSITIONS, REGISTERS, DISTILLATION):
        if name in parts:
            parts[name] = _as_tokens(parts[name], dimensions.embed_dim)
    if POSITIONS not in parts:
        raise UnsupportedWeightsError(
            "there are no position embeddings: the model uses rotary or other positions that are "
            "not stored. Choose weights with position embeddings"
        )
    has_class = CLASS_TOKEN in parts
    registers = _further_tokens(parts)
    if not has_class and not layout.averages_without_class_token:
        raise UnsupportedWeightsError(
            "there is no class token, which this layout's models have. Use a complete file"
        )
    if registers and not has_class:
        raise UnsupportedWeightsError(
            "there are registers but no class token, which Patchline's models cannot represent. "
            "Choose weights with a class token"
        )
    positions = parts[POSITIONS]
    prefix, grid = _prefix_and_grid(parts, layout, registers, pixels, dimensions.patch_size)
    added_1PD, patches_1ND = positions.tensor.tensor_split([prefix], dim=1)
    if has_class and prefix == 0:
        added_1PD = torch.zeros(1, 1, dimensions.embed_dim)
    if prefix > 1 and registers:
        registers = NamedTensor(
            registers.tensor + added_1PD[:, 1:], registers.sources + positions.sources
        )
    if registers:
        parts[REGISTERS] = registers
    whole = torch.cat([added_1PD[:, : int(has_class)], patches_1ND], dim=1)
    parts[POSITIONS] = NamedTensor(whole, positions.sources)
    return grid


def _further_tokens(parts: Parts) -> NamedTensor | None:
    """Return registers or the distillation token, and take the latter from the parts."""
    distillation = parts.pop(DISTILLATION, None)
    registers = parts.get(REGISTERS)
    if distillation and registers:
        raise UnsupportedWeightsError(
            "there are registers and a distillation token, which no published model has. Choose "
            "other weights"
        )
    return distillation or registers


def _prefix_and_grid(
    parts: Parts,
    layout: Layout,
    registers: NamedTensor | None,
    pixels: tuple[int, int] | None,
    patch_size: int,
) -> tuple[int, tuple[int, int]]:
    """Return how many positions belong to tokens before the patches, and the grid of the others."""
    count = parts[POSITIONS].tensor.shape[1]
    prefix = int(CLASS_TOKEN in parts)
    if registers and (layout.registers_have_positions or REGISTERS not in parts):
        prefix += registers.tensor.shape[1]
    if layout.prefix_may_lack_positions:
        try:
            return prefix, grid_of(count - prefix, pixels, patch_size)
        except UnsupportedWeightsError:
            return 0, grid_of(count, pixels, patch_size)
    return prefix, grid_of(count - prefix, pixels, patch_size)


def name_head(parts: Parts) -> str:
    """Give the layers of a tanh head our names, and return which head it is.

    A hidden layer without an output layer is left to the caller.
    """
    if "head.hidden.weight" not in parts or "head.weight" not in parts:
        return "linear"
    for each in ("weight", "bias"):
        if f"head.{each}" in parts:
            parts[f"head.output.{each}"] = parts.pop(f"head.{each}")
    return "tanh"


def add_zero_biases(parts: Parts) -> None:
    """Add zeros for the biases that some models do without, which is the same function."""
    for name in list(parts):
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and _MAY_LACK_BIAS.fullmatch(layer):
            outputs = parts[name].tensor.shape[0]
            parts.setdefault(f"{layer}.bias", NamedTensor(torch.zeros(outputs), ()))


def check_shapes(parts: Parts, dimensions: Dimensions, grid: tuple[int, int]) -> None:
    """Check that every parameter is there, with the shape that the dimensions demand.

    Raises:
        UnsupportedWeightsError: naming the first that is not.
    """
    expected = _compute_expected_shapes(parts, dimensions, grid)
    for name, shape in expected.items():
        found = tuple(_require(parts, name).tensor.shape)
        if found != shape:
            raise UnsupportedWeightsError(
                f"{_quote_sources(parts[name])} has the shape {found} instead of {shape}. Use the "
                "file of a complete, plain Vision Transformer"
            )
    extra = sorted(parts.keys() - expected.keys())
    if extra:
        raise UnsupportedWeightsError(
            f"{_quote_sources(parts[extra[0]])} is not part of any Patchline model. Choose weights "
            "of a plain Vision Transformer"
        )


def check_finite(parts: Parts) -> None:
    """Check that every value is a finite number.

    Raises:
        UnsupportedWeightsError: naming the first tensor with one that is not.
    """
    for part in parts.values():
        wrong = part.tensor.numel() - int(part.tensor.isfinite().sum())
        if wrong:
            raise UnsupportedWeightsError(
                f"{_quote_sources(part)} has {wrong:,} of {part.tensor.numel():,} values that are "
                "NaN or infinite, so its training run has diverged or the file is damaged. Use "
                "an earlier checkpoint, or copy the file again"
            )


def _compute_expected_shapes(
    parts: Parts, dimensions: Dimensions, grid: tuple[int, int]
) -> dict[str, tuple[int, ...]]:
    D, M, P = dimensions.embed_dim, dimensions.mlp_dim, dimensions.patch_size
    has_class = CLASS_TOKEN in parts
    shapes: dict[str, tuple[int, ...]] = {POSITIONS: (1, int(has_class) + grid[0] * grid[1], D)}
    layers: dict[str, tuple[int, ...]] = {  # the shape of each weight; its bias has the first side
        "patch_embedding.projection": (D, dimensions.channels, P, P),
        "norm": (D,),
    }
    if has_class:
        shapes[CLASS_TOKEN] = (1, 1, D)
    if REGISTERS in parts:
        shapes[REGISTERS] = (1, parts[REGISTERS].tensor.shape[1], D)
    if _any_begins(parts, "embedding_norm."):
        layers["embedding_norm"] = (D,)
    mlp = {"mlp.expand": (M, D), "mlp.contract": (D, M)}
    of_block = {
        "attention_norm": (D,),
        "attention.query_key_value": (3 * D, D),
        "attention.projection": (D, D),
        "mlp_norm": (D,),
        **mlp,
    }
    for block in range(dimensions.depth):
        layers |= {f"blocks.{block}.{name}": shape for name, shape in of_block.items()}
        if has_gains(parts):
            shapes |= {f"blocks.{block}.{each}_scale.gain_D": (D,) for each in ("attention", "mlp")}
    if _any_begins(parts, "pooling."):
        shapes["pooling.probe_11D"] = (1, 1, D)
        of_pooling = {"query": (D, D), "key_value": (2 * D, D), "projection": (D, D), "norm": (D,)}
        layers |= {f"pooling.{name}": shape for name, shape in {**of_pooling, **mlp}.items()}
    if _any_begins(parts, "head.output."):
        classes = parts["head.output.weight"].tensor.shape[0]
        layers |= {"head.hidden": (D, D), "head.output": (classes, D)}
    elif "head.weight" in parts:
        layers["head"] = (parts["head.weight"].tensor.shape[0], D)
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def has_gains(parts: Parts) -> bool:
    """Tell whether the blocks have LayerScale."""
    return any(name.endswith("_scale.gain_D") for name in parts)


def _any_begins(parts: Parts, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in parts)


def _as_tokens(part: NamedTensor, embed_dim: int) -> NamedTensor:
    """Return token vectors as (1, N, D), however many leading dimensions of 1 they have."""
    if part.tensor.shape[-1:] != (embed_dim,):
        raise UnsupportedWeightsError(
            f"{_quote_sources(part)} has the shape {tuple(part.tensor.shape)}, whose last "
            f"dimension is not {embed_dim}. Use the file of a complete, plain Vision Transformer"
        )
    return NamedTensor(part.tensor.reshape(1, -1, embed_dim), part.sources)


def _join(parts: Iterable[NamedTensor]) -> NamedTensor:
    listed = list(parts)
    sources = tuple(name for part in listed for name in part.sources)
    return NamedTensor(torch.cat([part.tensor for part in listed]), sources)


def _require(parts: Parts, name: str) -> NamedTensor:
    if name not in parts:
        raise UnsupportedWeightsError(
            f"nothing in the file becomes {name}. Use the file of a complete, plain Vision "
            "Transformer"
        )
    return parts[name]


def _quote_sources(part: NamedTensor) -> str:
    return f"'{' + '.join(part.sources)}'"
