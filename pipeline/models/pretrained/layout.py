"""A layout: how a library names the parts of a Vision Transformer in its files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from patchline.pipeline.models.layers.activations import ActivationName

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALVES = (0.5, 0.5, 0.5)

Rules = tuple[tuple[str, str], ...]
"""Regular expressions for whole names, each with what follows from a match."""


class UnsupportedWeightsError(Exception):
    """Our models cannot represent a file; the text continues "the file (its layout): "."""


class NamedTensor(NamedTuple):
    """A tensor with the names in the file from which it was made."""

    tensor: torch.Tensor
    sources: tuple[str, ...]


Parts = dict[str, NamedTensor]
"""Parts by our names; also `distillation_token`, and q, k and v of an attention layer."""


def _keep(_name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _unknown(_tensors: Mapping[str, torch.Tensor]) -> int | None:
    return None


@dataclass(frozen=True)
class Layout:
    """The names of one layout, and what its files leave unsaid."""

    title: str
    """The name of the layout, for people."""
    signature: tuple[str, ...]
    """Regular expressions; a file has the layout if each of them matches a name."""
    names: Rules
    """Our name for each of theirs."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    skipped: Rules = ()
    """Reasons why tensors are not needed; these come before `names`."""
    refused: Rules = ()
    """What tensors are that our models cannot represent; these come first."""
    norm_epsilon: float = 1e-6
    activation: ActivationName = "gelu"
    registers_have_positions: bool = False
    """Whether the position embedding covers the registers too."""
    prefix_may_lack_positions: bool = False
    """Whether some files have position embeddings for the patches alone."""
    averages_without_class_token: bool = False
    """Whether a file without class token averages the normalised patches."""
    resizing: str = "antialiased"
    """How the authors resize the position embeddings, as `layers.grid_resizing` names it."""
    pixel_note: str = ""
    """What more to say of `mean` and `std`, if files of models with others look the same."""
    activation_note: str = ""
    """A sentence about `activation`, for the same reason."""
    oriented: Callable[[str, torch.Tensor], torch.Tensor] = _keep
    """Turns a tensor, given our name for it, to the order of dimensions of torch."""
    num_heads: Callable[[Mapping[str, torch.Tensor]], int | None] = _unknown
    """Reads the number of heads off the shapes, where they show it."""

    def matches(self, names: Iterable[str]) -> bool:
        """Tell whether these are the names of a file in this layout."""
        listed = list(names)
        return all(any(re.fullmatch(each, name) for name in listed) for each in self.signature)

    def assigned(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Parts, dict[str, str]]:
        """Return the parts by our names, and the reason for each tensor that is not needed.

        Raises:
            UnsupportedWeightsError: for a tensor that is in no list, or that our models lack.
        """
        parts: Parts = {}
        skipped = {}
        for name, tensor in tensors.items():
            if refusal := _apply(self.refused, name):
                raise UnsupportedWeightsError(
                    f"'{name}' is part of {refusal}, which Patchline's models cannot represent. "
                    "Choose weights without it"
                )
            if reason := _apply(self.skipped, name):
                skipped[name] = reason
                continue
            ours = _apply(self.names, name)
            if ours is None:
                raise UnsupportedWeightsError(
                    f"'{name}' is not part of this layout, and its purpose is unknown. "
                    "Choose weights of a plain Vision Transformer"
                )
            if ours in parts:
                raise UnsupportedWeightsError(
                    f"'{name}' and '{parts[ours].sources[0]}' are the same part ({ours}). "
                    "Remove one of them"
                )
            parts[ours] = NamedTensor(self.oriented(ours, tensor.float()), (name,))
        return parts, skipped


def _apply(rules: Rules, name: str) -> str | None:
    """Return what the first matching rule says of a name, its groups filled in."""
    for pattern, result in rules:
        if match := re.fullmatch(pattern, name):
            return match.expand(result)
    return None
