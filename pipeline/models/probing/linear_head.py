"""Find the linear layer that ends a model; its input is the features of an image.

Shapes: B images of a batch, C channels, H height, W width, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import ImageSpec


def linear_head(model: nn.Module, num_classes: int, image: ImageSpec | None = None) -> nn.Linear:
    """Return the last linear layer with a bias and an output for each class.

    Args:
        model: the model, on any device; it is not changed.
        num_classes: number of outputs of the head.
        image: what the model takes. With it, a random image is classified to find the layer whose
            output is the model's output; without it, the last layer in module order is returned.

    Raises:
        ConfigError: if there is no such layer.
    """
    candidates = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module.out_features == num_classes
        and module.bias is not None
    ]
    if image is not None and candidates:
        candidates = _that_end(model, candidates, image)
    if not candidates:
        raise ConfigError(
            f"The model '{type(model).__name__}' does not end in a linear layer with a bias and "
            f"{num_classes} outputs, which is what a linear probe fits. Train all weights instead, "
            "or choose another model."
        )
    return candidates[-1]


def find_classifying_head(model: nn.Module, num_classes: int, image: ImageSpec) -> nn.Module:
    """Return the part of a model whose input is the features: its `head`, or its last layer.

    Raises:
        ConfigError: if it has neither.
    """
    head = getattr(model, "head", None)
    return head if isinstance(head, nn.Module) else linear_head(model, num_classes, image)


@contextmanager
def use_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Run a block with the model in evaluation mode and without gradients; restore its mode."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def _that_end(model: nn.Module, candidates: list[nn.Linear], image: ImageSpec) -> list[nn.Linear]:
    """Return the layers whose output for a random image is the model's output."""
    outputs: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(layer: nn.Module, _: Any, output_BK: torch.Tensor) -> None:
        outputs[layer] = (output_BK, output_BK.clone())  # the model may change it in place

    random = torch.Generator().manual_seed(0)
    image_BCHW = torch.randn((1, image.channels, image.height, image.width), generator=random)
    hooks = [layer.register_forward_hook(keep) for layer in candidates]
    try:
        with use_evaluation_mode(model):
            logits_BK = model(image_BCHW.to(candidates[0].weight.device))
            return [
                layer
                for layer, (output_BK, unchanged_BK) in outputs.items()
                if isinstance(layer, nn.Linear)
                and output_BK.data_ptr() == logits_BK.data_ptr()
                and torch.equal(unchanged_BK, logits_BK)
            ]
    finally:
        for hook in hooks:
            hook.remove()
