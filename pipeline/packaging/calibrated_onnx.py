"""Export a trained model to ONNX: uint8 images in, calibrated probabilities or features out.

The outputs, by name:

* `features` (B, D): the input of the head; those of an ensemble's members, one after another;
* `attention` (B, L, h, w): the class token's attention to the patches in each block, mean over the
  heads; without a class token, the mean over the patches;
* `readings` (B, L, K): the calibrated probabilities if the model ended after each block: final
  norm, pooling and head, applied to its tokens (arXiv 2303.08112 calls this the logit lens).

A model of Patchline's layers has all three, but no `readings` with attention pooling, which would
cost a tenth of a prediction; any other model that ends in a linear layer has `features`.
With a test-time flip, `features` and `readings` are of both views, and `attention` of the image
itself.

Shapes: B images, C channels, H height, W width, V views of each, L blocks, A heads, N tokens, P of
them before the patches, D features, K classes; h, w the grid of patches.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from patchline.pipeline.errors import ConfigError, PackagingError
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.models.calibrated_models import Ensemble, class_probabilities
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.intermediate_values import IntermediateValues, record_values
from patchline.pipeline.models.layers.pooling import (
    AveragePooling,
    ClassTokenPooling,
    SequencePooling,
)
from patchline.pipeline.models.model_description import Calibration, ModelDescription
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.models.probing.linear_head import find_classifying_head, linear_head
from patchline.plugin_api import ImageSpec, PatchTokens

logger = logging.getLogger(__name__)

INNER_OUTPUTS = ("features", "attention", "readings")
"""In the order of the graph's outputs, after `probabilities`."""
_CHEAP_POOLINGS = (ClassTokenPooling, AveragePooling, SequencePooling)
_TOLERANCE = 1e-3
"""Largest difference between the last reading and the probabilities."""


@dataclass
class _Captured:
    """What one model computed for the last batch."""

    features_BD: torch.Tensor | None = None
    grid: tuple[int, int] | None = None
    blocks: IntermediateValues | None = None


class AnsweringModel(nn.Module):
    """Probabilities, then the inner values of the same pass: uint8 (B, H, W, C) -> a tuple.

    Args:
        model: the model that computes the probabilities.

    Attributes:
        names: names of the inner values in the answer: some of `INNER_OUTPUTS`, in their order.
        members: the observed models; several for an ensemble.
    """

    def __init__(self, model: ProbabilityModel) -> None:
        super().__init__()
        self.model = model
        self.names: tuple[str, ...] = ()
        self.members: list[tuple[nn.Module, _Captured]] = []

    def forward(self, images_BHWC: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return probabilities (B, K) and the inner values."""
        probabilities_BK: torch.Tensor = self.model(images_BHWC)
        computed = {
            "features": self.features,
            "attention": self.attention,
            "readings": self.readings,
        }
        images = images_BHWC.shape[0]
        return (probabilities_BK, *(computed[name](images) for name in self.names))

    def features(self, _images: int) -> torch.Tensor:
        """Return the features of the last batch (B, D)."""
        parts = [each.features_BD for _, each in self.members if each.features_BD is not None]
        return torch.cat(parts, dim=1).float()

    def attention(self, images: int) -> torch.Tensor:
        """Return the attention of the last batch (B, L, h, w)."""
        maps = [_attention(model, captured, images) for model, captured in self.members]
        return torch.stack(maps).mean(0)

    def readings(self, images: int) -> torch.Tensor:
        """Return the probabilities after each block of the last batch (B, L, K)."""
        logits = [_readings(model, captured, images) for model, captured in self.members]
        classifier = self.model.model
        mixed = classifier.mixed(logits) if isinstance(classifier, Ensemble) else logits[0]
        return self.model.probabilities(mixed)


@contextmanager
def observe_model(model: ProbabilityModel) -> Iterator[AnsweringModel]:
    """Observe a model within the context, and return it with all inner values that it has."""
    classifier, image = model.model, model.image
    with torch.inference_mode():
        example = torch.zeros((1, image.height, image.width, image.channels), dtype=torch.uint8)
        num_classes = model(example).shape[1]
    whole = AnsweringModel(model)
    with ExitStack() as stack:
        try:
            for member in classifier.members if isinstance(classifier, Ensemble) else [classifier]:
                captured = stack.enter_context(_observe(member, image, num_classes))
                whole.members.append((member, captured))
        except ConfigError:  # it does not end in a linear layer
            whole.members.clear()
        else:
            whole.names = _names(whole)
        yield whole.eval()


def _names(whole: AnsweringModel) -> tuple[str, ...]:
    """Return the inner values that the model has, found by classifying two random images."""
    image, parts = whole.model.image, whole.members
    random = torch.Generator().manual_seed(0)
    shape = (2, image.channels, image.height, image.width)
    names = ["features"]
    with torch.inference_mode():
        logits_BK = whole.model.model(torch.randn(shape, generator=random))
        features = [captured.features_BD for _, captured in parts]
        if any(each is None or each.ndim != 2 or len(each) != 2 for each in features):  # noqa: PLR2004 - (B, D) of two images
            return ()
        if all(_has_attention(captured) for _, captured in parts) and _same(
            [_attention(member, captured, 2).shape for member, captured in parts]
        ):
            names.append("attention")
            if all(_ends_openly(member) for member, _ in parts):
                last_BK = whole.readings(2)[:, -1]
                expected_BK = whole.model.probabilities(logits_BK)
                if last_BK.shape == expected_BK.shape and torch.allclose(
                    last_BK, expected_BK, atol=_TOLERANCE
                ):
                    names.append("readings")
    return tuple(names)


@contextmanager
def _observe(model: nn.Module, image: ImageSpec, num_classes: int) -> Iterator[_Captured]:
    """Record the input of the head of one model and, of Patchline's layers, each block's values.

    Raises:
        ConfigError: if the model has no head.
    """
    captured = _Captured()
    with ExitStack() as stack:

        def watch(module: nn.Module, keep: Any, *, before: bool) -> None:
            hook = module.register_forward_pre_hook if before else module.register_forward_hook
            stack.callback(hook(keep).remove)

        def keep_features(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            captured.features_BD = inputs[0]

        def keep_grid(_: nn.Module, __: tuple[Any, ...], output: object) -> None:
            if isinstance(output, PatchTokens):
                captured.grid = output.grid

        watch(find_classifying_head(model, num_classes, image), keep_features, before=True)
        embedding = getattr(model, "patch_embedding", None)
        is_open = any(isinstance(module, MultiHeadSelfAttention) for module in model.modules())
        if isinstance(embedding, nn.Module) and is_open:
            watch(embedding, keep_grid, before=False)
            captured.blocks = stack.enter_context(record_values(model))
        yield captured


def _ends_openly(model: nn.Module) -> bool:
    """Return whether the end of a model can be applied to the tokens of each block, cheaply."""
    ends = (getattr(model, name, None) for name in ("norm", "head"))
    return isinstance(getattr(model, "pooling", None), _CHEAP_POOLINGS) and all(
        isinstance(end, nn.Module) for end in ends
    )


def _has_attention(captured: _Captured) -> bool:
    """Return whether every block attends to the patches of one grid."""
    if captured.grid is None or captured.blocks is None or not captured.blocks.blocks:
        return False
    shapes = [tuple(each.attention.weights_BHNN.shape[-2:]) for each in captured.blocks.blocks]
    rows, columns = captured.grid
    return _same(shapes) and shapes[0][0] >= rows * columns


def _same(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _attention(model: nn.Module, captured: _Captured, images: int) -> torch.Tensor:
    """Return the attention that the classified token pays to the patches: (B, L, h, w)."""
    assert captured.grid is not None and captured.blocks is not None  # noqa: PT018, S101 - mypy
    rows, columns = captured.grid
    is_class_token = isinstance(getattr(model, "pooling", None), ClassTokenPooling)
    seen = []
    for block in captured.blocks.blocks:
        weights_BANN = block.attention.weights_BHNN[:images]
        P = weights_BANN.shape[-1] - rows * columns
        if is_class_token:
            seen.append(weights_BANN[:, :, 0, P:])
        else:
            seen.append(weights_BANN[:, :, P:, P:].mean(2))
    mean_BLN = torch.stack(seen, dim=1).mean(2)
    return mean_BLN.reshape(images, len(seen), rows, columns).float()


def _readings(model: nn.Module, captured: _Captured, images: int) -> torch.Tensor:
    """Return the logits that the head reads from the tokens after each block: (B, L, K)."""
    assert captured.blocks is not None  # noqa: S101 - mypy
    ends: Any = model
    tokens = [block.tokens_out_BND for block in captured.blocks.blocks]
    if isinstance(ends.pooling, ClassTokenPooling):
        first_VLD = torch.stack([each[:, 0] for each in tokens], dim=1)  # one norm for all blocks
        pooled_VLD = ends.norm(first_VLD)
    else:
        pooled_VLD = torch.stack([ends.pooling(ends.norm(each)) for each in tokens], dim=1)
    if getattr(model, "test_time_flip", False):
        pooled_VLD = pooled_VLD.reshape(2, images, *pooled_VLD.shape[1:]).mean(0)
    logits: torch.Tensor = ends.head(pooled_VLD.flatten(0, 1))
    return logits.reshape(images, len(tokens), -1).float()


class ProbabilityModel(nn.Module):
    """Normalise, classify and calibrate: uint8 (B, H, W, C) -> probabilities (B, K).

    Args:
        model: the model that returns logits (B, K).
        image: the images that the model takes.
        calibration: the calibration of the logits.
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
        logits_BK = self.model(normalize(images_BHWC, self.image))
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
        features_BD: torch.Tensor = self.encoder(normalize(images_BHWC, self.image)).float()
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


def export_onnx(
    model: ProbabilityModel | FeatureModel, file: Path, *, without: Sequence[str] = ()
) -> tuple[str, ...]:
    """Write the model as one ONNX file with a dynamic batch dimension.

    The file of a classifier also has the inner values, as far as the model has them and torch can
    export them.

    Args:
        model: the model, in evaluation mode and on the CPU.
        file: the ONNX file, which is written whole or not at all.
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
    with observe_model(model) as whole:
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
