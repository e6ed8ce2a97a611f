"""Export a trained model to ONNX: uint8 images in, calibrated probabilities or features out."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch
from torch import nn

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.evaluation.metrics.label_calibration import LabelCalibration
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.models.class_probabilities import class_probabilities
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.models.model_description import Calibration, ModelDescription
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.packaging.inner_outputs import Inside, inside_of
from patchline.plugin_api import ImageSpec

logger = logging.getLogger(__name__)


class ProbabilityModel(nn.Module):
    """Normalise, classify and calibrate: uint8 (B, H, W, C) -> probabilities (B, K).

    Args:
        model: returns logits (B, K).
        image: what it takes.
        calibration: of its logits.
    """

    def __init__(
        self, model: nn.Module, image: ImageSpec, calibration: Calibration = UNRECORDED
    ) -> None:
        super().__init__()
        self.model = model
        self.image = image
        self.calibration = calibration

    @classmethod
    def of(cls, model: nn.Module, description: ModelDescription) -> Self:
        """Return a model with the calibration that its description holds."""
        return cls(model, description.image, description.logit_calibration)

    def forward(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        """Return the probabilities."""
        logits_BK = self.model(normalised(images_BHWC, self.image))
        return self.probabilities(logits_BK, dim=1)

    def probabilities(self, logits: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
        """Return the probabilities of logits, whose axis `dim` is K."""
        return class_probabilities(logits, self.calibration, dim=dim)


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


class AnsweringModel(nn.Module):
    """Probabilities, then the inner values of the same pass: uint8 (B, H, W, C) -> a tuple.

    Args:
        model: computes the probabilities.
        inside: observes it.
        names: of the inner values, in their order.
    """

    def __init__(self, model: ProbabilityModel, inside: Inside, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inside, self.names = model, inside, tuple(names)

    def forward(self, images_BHWC: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return probabilities (B, K) and the inner values."""
        probabilities_BK: torch.Tensor = self.model(images_BHWC)
        images = images_BHWC.shape[0]
        inner = self.inside.values(self.names, images, self.model.probabilities)
        return (probabilities_BK, *inner)


@contextmanager
def answering(model: ProbabilityModel) -> Iterator[AnsweringModel]:
    """Return the model with all inner values that it has, within the context."""
    with torch.inference_mode():
        shape = (1, model.image.height, model.image.width, model.image.channels)
        num_classes = model(torch.zeros(shape, dtype=torch.uint8)).shape[1]
    is_multi_label = isinstance(model.calibration, LabelCalibration)
    with inside_of(model.model, model.image, num_classes, is_multi_label=is_multi_label) as inside:
        yield AnsweringModel(model, inside, inside.names).eval()


def export_onnx(
    model: ProbabilityModel | FeatureModel, file: Path, *, without: Sequence[str] = ()
) -> tuple[str, ...]:
    """Write the model as one ONNX file with a dynamic batch dimension.

    The file of a classifier also has the inner values of `patchline.pipeline.packaging.
    inner_outputs`, as far as the model has them and torch can export them.

    Args:
        model: in evaluation mode, on the CPU.
        file: where to write; whole or absent.
        without: inner values to leave out.

    Returns:
        The names of the outputs.

    Raises:
        PackagingError: if torch cannot export the model.
    """
    image = model.image
    example = torch.zeros((2, image.height, image.width, image.channels), dtype=torch.uint8)
    if isinstance(model, FeatureModel):
        write_onnx(model, example, file, input_name="images", output_names=["features"])
        return ("features",)
    with answering(model) as whole:
        whole.names = tuple(name for name in whole.names if name not in without)
        names = ("probabilities", *whole.names)
        if whole.names:
            try:
                write_onnx(whole, example, file, input_name="images", output_names=names)
            except PackagingError:
                logger.debug("The inner values of the model cannot be exported.", exc_info=True)
            else:
                return names
    write_onnx(model, example, file, input_name="images", output_names=["probabilities"])
    return ("probabilities",)
