"""Compute the cost of a model: parameters, tokens, multiply-accumulates, activation memory.

Everything is computed on tensors without values: ViT-Huge takes seconds, not gigabytes.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from patchline.pipeline.config import ModelChoice, PatchEmbeddingChoice
from patchline.pipeline.errors import PluginError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_building import build_model, build_on_meta
from patchline.pipeline.plugin_system.plugin_loader import Kind, plugin_errors
from patchline.pipeline.plugin_system.plugin_settings import name_patch_embedding, settings_of
from patchline.plugin_api import NO_PATCH_EMBEDDING, DataTraits, ImageSpec, PluginConfig

NUM_CLASSES = 1000
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
_OTHER_NUM_CLASSES = 2


class ModelCost(FrozenModel):
    """The cost of a model for one RGB image."""

    parameters: int
    """The number of parameters with 1000 classes."""
    parameters_without_head: int
    """Parameters that do not depend on the number of classes."""
    tokens: int
    """Patches of one image; 0 for a model without a patch embedding."""
    macs: int
    """Multiply-accumulate operations of matrix products and convolutions, forward."""
    activation_bytes: int
    """Bytes kept for the backward pass in training, float32; fused attention keeps no scores."""

    def rows(self) -> list[tuple[str, str]]:
        """Return what each number is called, and the number with its unit."""
        without_head = f"{self.parameters_without_head:,} without the head"
        memory = f"{self.activation_bytes / 2**20:.1f} MiB per image in training, float32"
        return [
            ("parameters", f"{self.parameters:,} ({without_head})"),
            ("tokens", f"{self.tokens:,}" if self.tokens else "no patch embedding"),
            ("forward pass", f"{self.macs / 1e9:.3f} GMACs per image"),
            ("activation memory", memory),
        ]


def resolve_choice(choice: ModelChoice, traits: DataTraits) -> ModelChoice:
    """Return the choice with every setting filled in for images of a size.

    Raises:
        ConfigError: if a setting does not fit the images.
        PluginError: for a plugin that is unknown or broken.
    """

    def resolved(kind: Kind, chosen: Any, prefix: str) -> Any:
        settings: PluginConfig = settings_of(kind, chosen, prefix)
        with plugin_errors(kind, chosen.name, "failed to resolve its settings"):
            settings = settings.resolved_for(traits)
        return chosen.with_settings(settings.model_dump())

    model: ModelChoice = resolved("model", choice, "model")
    embedding: PatchEmbeddingChoice = name_patch_embedding(choice)
    if embedding.name != NO_PATCH_EMBEDDING:
        embedding = resolved("patch_embedding", embedding, "model.patch_embedding")
    return model.model_copy(update={"patch_embedding": embedding})


def model_cost(choice: ModelChoice, image_size: int) -> ModelCost:
    """Compute the cost of a model for square RGB images and 1000 classes.

    Raises:
        ConfigError: if a setting does not fit the images.
        PluginError: for a plugin that is unknown or broken.
    """
    image = ImageSpec(
        channels=3, height=image_size, width=image_size, mean=(0.5,) * 3, std=(0.5,) * 3,
        resize="crop",
    )  # fmt: skip
    traits = DataTraits(3, image_size, image_size, NUM_CLASSES, mirror_symmetric=True)
    resolved = resolve_choice(choice, traits)
    model = _build(resolved, image, NUM_CLASSES)
    parameters = _parameters(model)
    for_a_class = (parameters - _parameters(_build(resolved, image, _OTHER_NUM_CLASSES))) / (
        NUM_CLASSES - _OTHER_NUM_CLASSES
    )
    try:
        tokens, macs = _count_forward(model.eval().to("meta"), image_size)
        try:
            activation_bytes = _count_kept(model.train(), image_size)
        except (ValueError, DataDependentOutputException):
            # Batch norm over one value, or a draw in training: what is kept without either.
            activation_bytes = _count_kept(model.eval(), image_size)
    except Exception as error:
        raise PluginError(
            f"The model plugin '{choice.name}' fails on a {image_size}x{image_size} image: "
            f"{type(error).__name__}: {error}. Run `patchline plugins check model {choice.name}`."
        ) from error
    return ModelCost(
        parameters=parameters,
        parameters_without_head=round(parameters - NUM_CLASSES * for_a_class),
        tokens=tokens,
        macs=macs,
        activation_bytes=activation_bytes,
    )


def _build(choice: ModelChoice, image: ImageSpec, num_classes: int) -> nn.Module:
    """Build without memory; with it where a library computes with real numbers while it builds."""
    try:
        return build_on_meta(choice, image, num_classes)
    except PluginError as error:
        if not isinstance(error.__cause__, NotImplementedError):
            raise
        with torch.random.fork_rng(devices=[]):
            return build_model(choice, image, num_classes)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _count_forward(model: nn.Module, image_size: int) -> tuple[int, int]:
    """Return tokens and multiply-accumulates of one image, on the meta device."""
    tokens: list[int] = []

    def count_tokens(_module: Any, _inputs: Any, output: Any) -> None:
        if hasattr(output, "tokens_BND"):
            tokens.append(int(output.tokens_BND.shape[1]))

    hooks = [module.register_forward_hook(count_tokens) for module in model.modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, image_size, image_size, device="meta"))
    for hook in hooks:
        hook.remove()
    return (tokens[0] if tokens else 0), counter.get_total_flops() // 2


def _count_kept(model: nn.Module, image_size: int) -> int:
    """Return the bytes that are kept of one image; a CPU's fused attention keeps no scores."""
    saved = _SavedTensors()
    with FakeTensorMode():
        state = {
            name: torch.empty(value.shape, dtype=value.dtype, requires_grad=value.requires_grad)
            for name, value in [*model.named_parameters(), *model.named_buffers()]
        }
        saved.ignore(list(state.values()))
        images_BCHW = torch.zeros(1, 3, image_size, image_size)
        with torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda value: value):
            torch.func.functional_call(model, state, (images_BCHW,))
    return saved.bytes


class _SavedTensors:
    """Add up what autograd keeps, each piece of memory once."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []  # alive, so that no address is used twice
        self._ignored: set[int] = set()
        self._sizes: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())

    def ignore(self, tensors: list[torch.Tensor]) -> None:
        self._ignored |= {_address(tensor) for tensor in tensors}

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        if _address(tensor) not in self._ignored:
            self._kept.append(tensor)
            self._sizes[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - tensors without values have no data_ptr
