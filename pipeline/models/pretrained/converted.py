"""What the conversion of a weight file returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


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
    """By the plugin's parameter names; the head is included if the file has one."""
    grid: tuple[int, int]
    """Rows and columns of the position embeddings."""
    patch_size: int
    """In pixels."""
    channels: int
    """Of the images."""
    mean: tuple[float, ...]
    """Subtracted from each channel of the images that the weights were trained with."""
    std: tuple[float, ...]
    """Divided by, per channel."""
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
