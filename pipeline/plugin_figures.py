"""What a model costs: parameters, tokens, multiplications."""

from __future__ import annotations

from typing import Any

from pipeline.config import ModelChoice, PluginChoice
from pipeline.plugin_api import DataTraits, ImageSpec
from pipeline.plugin_settings import settings_of
from pipeline.section import Section

NUM_CLASSES = 1000


class ModelFigures(Section):
    """Counted on a model without weights; nothing is computed."""

    parameters: int
    """With 1000 classes."""
    tokens: int
    """Patches of one image."""
    macs: int
    """Multiply-accumulate operations of one image."""


def model_figures(choice: ModelChoice, image_size: int) -> ModelFigures:
    """Count a model for RGB images of a size and 1000 classes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from pipeline.model_building import build_on_meta

    traits = DataTraits(3, image_size, image_size, NUM_CLASSES, mirror_symmetric=True)
    image = ImageSpec(
        channels=3, height=image_size, width=image_size, mean=(0.5,) * 3, std=(0.5,) * 3,
        resize="crop",
    )  # fmt: skip
    model_settings = settings_of("model", choice, "model").resolved_for(traits)
    embedding = choice.patch_embedding
    embedding_settings = settings_of(
        "patch_embedding", embedding, "model.patch_embedding"
    ).resolved_for(traits)
    resolved = choice.with_settings(model_settings.model_dump()).model_copy(
        update={"patch_embedding": embedding.with_settings(embedding_settings.model_dump())}
    )
    model = build_on_meta(resolved, image, NUM_CLASSES)
    tokens: list[int] = []

    def count_tokens(_module: Any, _inputs: Any, output: Any) -> None:
        if hasattr(output, "tokens_BND"):
            tokens.append(int(output.tokens_BND.shape[1]))

    for module in model.modules():
        module.register_forward_hook(count_tokens)
    images_BCHW = torch.zeros(1, 3, image_size, image_size, device="meta")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(images_BCHW)
    return ModelFigures(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokens=tokens[0] if tokens else 0,
        macs=counter.get_total_flops() // 2,
    )


def choice_of_model(name: str, embedding: str | None = None) -> ModelChoice:
    """Return the model with its default settings, fed by an embedding."""
    embedding = embedding or ModelChoice().patch_embedding.name
    return ModelChoice(name=name, patch_embedding=PluginChoice(name=embedding))
