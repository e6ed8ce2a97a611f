"""The layer that a probe fits is found by what it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.plugin_api import ImageSpec
from tests.pipeline.models.probing.tiny_models import MODELS, image_spec, tiny_model


class _LateGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(192, 5)
        self.gate = nn.Linear(192, 5)

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        flat_BD = images_BCHW.flatten(1)
        return self.output(flat_BD * self.gate(flat_BD).mean(1, keepdim=True))


@pytest.mark.parametrize("name", MODELS)
def test_the_head_is_the_layer_whose_output_is_the_models(name: str) -> None:
    """Models of ours, timm's and torchvision's; the model's mode does not change."""
    model, image, expected = tiny_model(name)
    model.train()
    assert linear_head(model, 5) is model.get_submodule(expected)
    assert linear_head(model, 5, image) is model.get_submodule(expected)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_inside_with_as_many_outputs_is_not_the_head() -> None:
    """Also if it comes last in module order, or if all outputs are zeros."""
    model = _LateGate()
    assert linear_head(model, 5, image_spec(8)) is model.output
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert linear_head(model, 5, image_spec(8)) is model.output


@pytest.mark.parametrize(
    "end", [nn.Softmax(1), nn.ReLU(inplace=True), nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5)]
)
def test_outputs_that_are_changed_afterwards_are_an_error(end: nn.Module) -> None:
    """A fitted head would then not be what the model computes."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), end)
    with pytest.raises(ConfigError, match=r"'Sequential' does not end in a .*Train all weights"):
        linear_head(model, 5, image_spec(8))


@pytest.mark.parametrize("image", [None, image_spec(64)])
def test_a_model_without_a_linear_head_is_an_error(image: ImageSpec | None) -> None:
    """SqueezeNet ends in a convolution; and the number of classes must be the model's."""
    choice: Any = {"name": "torchvision", "architecture": "squeezenet1_1"}
    model = build_model(ModelChoice.model_validate(choice), image_spec(64), 5)
    with pytest.raises(ConfigError, match=r"linear layer with a bias and 5 outputs, which is what"):
        linear_head(model, 5, image)
    model, _, _ = tiny_model("vit")
    with pytest.raises(ConfigError, match=r"7 outputs"):
        linear_head(model, 7, image)
