"""Recognise the layout of a weight file from its names, and convert it to one of our models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.pretrained.assembling import (
    CLASS_TOKEN,
    REGISTERS,
    Dimensions,
    add_zero_biases,
    check_finite,
    check_shapes,
    dimensions_of,
    has_gains,
    join_projections,
    name_head,
    place_tokens,
)
from patchline.pipeline.models.pretrained.companion_files import (
    CompanionFacts,
    PixelStatistics,
    facts_beside,
)
from patchline.pipeline.models.pretrained.layout import Layout, Parts, UnsupportedWeightsError
from patchline.pipeline.models.pretrained.library_layouts import (
    CLIP_LAYOUTS,
    JAX,
    TIMM_LAYOUTS,
    TORCHVISION,
    TRANSFORMERS_LAYOUTS,
)
from patchline.pipeline.models.pretrained.weights_file import FileTensors, read_tensors


@dataclass(frozen=True)
class ConvertedWeights:
    """The weights of a file under the parameter names of a model plugin, with its settings."""

    layout: str
    """The layout of the file, such as "timm ViT"."""
    model: str
    """The model plugin: "vit" or "vit_registers"."""
    settings: dict[str, Any]
    """Settings of that plugin, its patch embedding included."""
    weights: dict[str, torch.Tensor]
    """The tensors by the plugin's parameter names; the head is included if the file has one."""
    grid: tuple[int, int]
    """Rows and columns of the position embeddings."""
    patch_size: int
    """The side of a patch in pixels."""
    channels: int
    """The number of channels of the images."""
    mean: tuple[float, ...]
    """The mean that is subtracted from each channel of the images that the weights were trained
    with."""
    std: tuple[float, ...]
    """The standard deviation that each channel is divided by."""
    num_classes: int | None
    """Outputs of the head; None without one."""
    classes: tuple[str, ...] | None
    """Names of the outputs, if they are beside the file."""
    sources: dict[str, tuple[str, ...]]
    """The names in the file from which each of ours was made; none for zeros."""
    skipped: dict[str, str]
    """The names in the file that were not used, each with the reason."""
    resizing: str = "antialiased"
    """How the authors resize the position embeddings, as `layers.grid_resizing` names it."""
    notes: tuple[str, ...] = ()
    """Sentences about what had to be assumed."""

    @property
    def image_size(self) -> int:
        """Height in pixels of the images that the positions are for."""
        return self.grid[0] * self.patch_size


LAYOUTS: tuple[Layout, ...] = (
    TORCHVISION,
    *TRANSFORMERS_LAYOUTS,
    *CLIP_LAYOUTS,
    *TIMM_LAYOUTS,
    JAX,
)
"""Every layout that is read; the first that matches counts."""
_FAMILIES = "torchvision, timm, transformers, DeiT, DINO, DINOv2, MAE, CLIP and JAX"
_PUBLISHED_HEADS = {
    192: 3,
    384: 6,
    768: 12,
    1024: 16,
    1152: 16,
    1280: 16,
    1408: 16,
    1536: 24,
    1664: 16,
}
"""Attention heads of the published models, by embedding dimension."""
_HEAD_SIZE = 64
_ADAPTER = re.compile(r"(?:^|[._])(?:lora|hada|lokr|ia3|oft|boft|vera)_")
"""In the names of tensors that change a model's own, as PEFT and others write them."""
_INITIAL_GAIN = 1e-5
"""The setting of models with LayerScale; the gains themselves come from the file."""


def convert(file: Path, *, num_heads: int | None = None) -> ConvertedWeights:
    """Read a weight file and convert it.

    Args:
        file: the weights; `config.json` and `preprocessor_config.json` beside it are read too.
        num_heads: attention heads in each block, if the user set them.

    Raises:
        ConfigError: if the file cannot be read, its layout is unknown, or a part of it cannot be
            represented by our models.
    """
    tensors = read_tensors(file)
    layout = _recognize(file, tensors.weights)
    try:
        return _convert(file, layout, tensors, num_heads)
    except UnsupportedWeightsError as error:
        raise ConfigError(f"'{file}' ({layout.title}): {error}.") from error


def _recognize(file: Path, names: Iterable[str]) -> Layout:
    listed = list(names)
    if adapter := next(filter(_ADAPTER.search, listed), None):
        raise ConfigError(
            f"'{file}' is an adapter, such as LoRA, not a whole model: it has '{adapter}'. Merge "
            "it into its base model first (in PEFT, `merge_and_unload()`), and save that model."
        )
    for layout in LAYOUTS:
        if layout.matches(listed):
            return layout
    raise ConfigError(
        f"'{file}' has no supported Vision Transformer layout: its first tensor is "
        f"'{listed[0]}'. Use weights of a plain ViT with the tensor names of {_FAMILIES}."
    )


def _convert(
    file: Path, layout: Layout, tensors: FileTensors, num_heads: int | None
) -> ConvertedWeights:
    parts, skipped = layout.assigned(tensors.weights)
    skipped = tensors.others | skipped
    join_projections(parts)
    dimensions = dimensions_of(parts)
    facts = facts_beside(file, dimensions.embed_dim)
    grid = place_tokens(parts, layout, dimensions, facts.image_size)
    head = name_head(parts)
    if head == "linear":
        _skip_hidden_layer(parts, skipped)
    add_zero_biases(parts)
    check_shapes(parts, dimensions, grid)
    check_finite(parts)
    notes = [*tensors.notes, *facts.notes]
    if layout.activation_note and facts.activation is None:
        notes.append(layout.activation_note)
    heads = num_heads or layout.num_heads(tensors.weights) or facts.num_heads
    heads = _check_heads(heads or _assume_heads(dimensions.embed_dim, notes), dimensions)
    model, choices = _model(parts, head, facts)
    settings: dict[str, Any] = {
        "patch_embedding": {"name": "conv", "patch_size": dimensions.patch_size},
        "embed_dim": dimensions.embed_dim,
        "depth": dimensions.depth,
        "num_heads": heads,
        "mlp_dim": dimensions.mlp_dim,
        "layer_scale": _INITIAL_GAIN if has_gains(parts) else None,
        "norm": "layer_norm",
        "norm_epsilon": facts.norm_epsilon or layout.norm_epsilon,
        "activation": facts.activation or layout.activation,
        "embedding_norm": "embedding_norm.weight" in parts,
        "qk_norm": False,
        **choices,
    }
    pixels = _pixel_statistics(layout, facts, dimensions.channels, notes)
    num_classes = _num_classes(parts)
    classes = _class_names(facts, num_classes, notes)
    return ConvertedWeights(
        layout=layout.title,
        model=model,
        settings=settings,
        weights={name: part.tensor.contiguous() for name, part in parts.items()},
        grid=grid,
        patch_size=dimensions.patch_size,
        channels=dimensions.channels,
        mean=pixels.mean,
        std=pixels.std,
        num_classes=num_classes,
        classes=classes,
        sources={name: part.sources for name, part in parts.items()},
        skipped=skipped,
        resizing=layout.resizing,
        notes=tuple(notes),
    )


def _skip_hidden_layer(parts: Parts, skipped: dict[str, str]) -> None:
    """Leave out a hidden layer whose output layer is not in the file."""
    for name in ("head.hidden.weight", "head.hidden.bias"):
        if name in parts:
            reason = "hidden layer of a head whose output layer is not in the file"
            skipped |= dict.fromkeys(parts.pop(name).sources, reason)


def _model(parts: Parts, head: str, facts: CompanionFacts) -> tuple[str, dict[str, Any]]:
    """Return the model plugin, and the settings that not all models have."""
    pools_by_attention = "pooling.probe_11D" in parts
    has_class = CLASS_TOKEN in parts
    if has_class and (pools_by_attention or facts.averages):
        raise UnsupportedWeightsError(
            "the model has a class token but pools the patches, which Patchline's models cannot "
            "represent. Choose weights that use the class token"
        )
    if REGISTERS not in parts:
        without_class = "attention" if pools_by_attention else "average"
        pooling = "class_token" if has_class else without_class
        return "vit", {"positions": "learned", "pooling": pooling, "head": head}
    if head != "linear":
        raise UnsupportedWeightsError(
            "the model has registers and a tanh head, which Patchline's models cannot represent. "
            "Choose weights with a linear head"
        )
    return "vit_registers", {"num_registers": parts[REGISTERS].tensor.shape[1]}


def _assume_heads(embed_dim: int, notes: list[str]) -> int:
    heads = _PUBLISHED_HEADS.get(embed_dim)
    reason = f"as published for dimension {embed_dim}"
    if heads is None:
        if embed_dim % _HEAD_SIZE:
            raise UnsupportedWeightsError(
                f"the number of attention heads is not in the file, and is not known for dimension "
                f"{embed_dim}. Set model.num_heads, or put the model's config.json beside the file"
            )
        heads, reason = embed_dim // _HEAD_SIZE, f"of size {_HEAD_SIZE}"
    notes.append(f"The number of attention heads is not in the file: {heads}, {reason}.")
    return heads


def _check_heads(heads: int, dimensions: Dimensions) -> int:
    if heads < 1 or dimensions.embed_dim % heads:
        raise UnsupportedWeightsError(
            f"{heads} attention heads do not divide the dimension {dimensions.embed_dim} of the "
            "weights. Set model.num_heads to a divisor"
        )
    return heads


def _pixel_statistics(
    layout: Layout, facts: CompanionFacts, channels: int, notes: list[str]
) -> PixelStatistics:
    """Return mean and standard deviation of each channel."""
    known = facts.pixels or PixelStatistics(layout.mean, layout.std)
    if facts.pixels is None:
        mean, std = (", ".join(f"{each:g}" for each in values) for values in known)
        more = f"; {layout.pixel_note}" if layout.pixel_note else ""
        notes.append(
            "Mean and standard deviation of the pixels are not in the file: mean "
            f"{mean}, deviation {std}, as usual for {layout.title}{more}."
        )
    if len(known.mean) == len(known.std) == channels:
        return known
    if len(known.mean) > 1:
        notes.append(
            f"Mean and standard deviation are known for {len(known.mean)} channels, the weights "
            f"have {channels}: their averages are used."
        )
    return PixelStatistics((fmean(known.mean),) * channels, (fmean(known.std),) * channels)


def _class_names(
    facts: CompanionFacts, num_classes: int | None, notes: list[str]
) -> tuple[str, ...] | None:
    """Return the names of the outputs, if there is one for each."""
    if facts.classes is None or num_classes is None:
        return None
    if len(facts.classes) != num_classes:
        notes.append(
            f"The {len(facts.classes)} class names beside the file were ignored: the head has "
            f"{num_classes} outputs."
        )
        return None
    return facts.classes


def _num_classes(parts: Parts) -> int | None:
    """Return the number of outputs of the head."""
    for name in ("head.weight", "head.output.weight"):
        if name in parts:
            return parts[name].tensor.shape[0]
    return None
