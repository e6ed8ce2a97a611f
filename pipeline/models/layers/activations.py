"""The activation functions of an MLP, by name.

GELU (arXiv 1606.08415) is the published ViT's; its two approximations save the error function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import nn

ActivationName = Literal["gelu", "gelu_tanh", "quick_gelu"]


class QuickGELU(nn.Module):
    """The sigmoid approximation of GELU, as in CLIP: x sigmoid(1.702 x) (1606.08415, section 2)."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the activations, shaped like the input."""
        return hidden * torch.sigmoid(1.702 * hidden)


ACTIVATIONS: dict[ActivationName, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "quick_gelu": QuickGELU,
}
"""Build the activation; gelu_tanh is the tanh approximation (1606.08415, section 2)."""
