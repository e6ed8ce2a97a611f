"""Export a trained model to ONNX: uint8 images in, calibrated probabilities or features out."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.probing.linear_head import linear_head
from patchline.plugin_api import ImageSpec


class ProbabilityModel(nn.Module):
    """Normalise, classify and calibrate: uint8 (B, H, W, C) -> probabilities (B, K)."""

    def __init__(self, model: nn.Module, image: ImageSpec, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.image = image
        self.temperature = temperature

    def forward(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        """Return the probabilities."""
        logits_BK = self.model(normalised(images_BHWC, self.image))
        return torch.softmax(logits_BK.float() / self.temperature, dim=1)


class FeatureModel(nn.Module):
    """Normalise and encode: uint8 (B, H, W, C) -> features (B, D), the input of the head."""

    def __init__(self, encoder: nn.Module, image: ImageSpec) -> None:
        super().__init__()
        self.encoder, self.image = without_head(encoder, image), image

    def forward(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        features_BD: torch.Tensor = self.encoder(normalised(images_BHWC, self.image)).float()
        return features_BD


def without_head(encoder: nn.Module, image: ImageSpec) -> nn.Module:
    """Return a copy of an encoder that returns the input of its untrained head.

    Raises:
        ConfigError: if the model does not end in a linear layer.
    """
    copied = copy.deepcopy(encoder)
    head = copied.head if hasattr(copied, "head") else linear_head(copied, 1, image)
    name = next(name for name, module in copied.named_modules() if module is head)
    parent, _, last = name.rpartition(".")
    setattr(copied.get_submodule(parent), last, nn.Identity())
    return copied


def export_onnx(model: ProbabilityModel | FeatureModel, file: Path) -> None:
    """Write the model as one ONNX file with a dynamic batch dimension.

    Raises:
        PackagingError: if torch cannot export the model.
    """
    image = model.image
    example = torch.zeros((2, image.height, image.width, image.channels), dtype=torch.uint8)
    output = "probabilities" if isinstance(model, ProbabilityModel) else "features"
    write_onnx(model, example, file, input_name="images", output_name=output)
