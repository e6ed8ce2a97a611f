"""Tiny models for 32x32 images in 8x8 patches with random parameters, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tests.plugins.model_parity import randomise

Tensors = dict[str, torch.Tensor]
Answer = Callable[[torch.Tensor], torch.Tensor]

IMAGE, PATCH, DIM, HEADS, DEPTH, MLP, CLASSES = 32, 8, 64, 4, 2, 96, 5


class Published(NamedTuple):
    """A weight file, and the logits that its library computes; features if it has no head."""

    file: Path
    answer: Answer
    title: str
    has_head: bool = True


def timm_vit(**settings: Any) -> Any:
    """Return a random ViT of timm."""
    kind = settings.pop("kind", VisionTransformer)
    tiny = {
        "img_size": IMAGE,
        "patch_size": PATCH,
        "embed_dim": DIM,
        "depth": DEPTH,
        "num_heads": HEADS,
        "mlp_ratio": MLP / DIM,
        "num_classes": CLASSES,
    }
    model = kind(**{**tiny, **settings})
    randomise(model)
    return model.eval()


def state_of(model: nn.Module) -> Tensors:
    """Return a copy of the tensors of a model."""
    return {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}


def saved(folder: Path, tensors: Tensors) -> Path:
    """Write a safetensors file."""
    save_file(tensors, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def pickled(folder: Path, contents: object, suffix: str = ".pth") -> Path:
    """Write a checkpoint with torch."""
    torch.save(contents, folder / f"weights{suffix}")
    return folder / f"weights{suffix}"
