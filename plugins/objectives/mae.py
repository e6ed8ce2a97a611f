"""Masked autoencoder: pre-training without labels, by reconstructing hidden patches.

Settings and plugin; the networks are in `patchline.plugins.objectives.mae_module`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from patchline.plugin_api import Objective, ObjectiveContext, ObjectivePlugin, PluginConfig

Size = Annotated[int, Field(ge=1, le=65_536)]


class MaeConfig(PluginConfig):
    """What is hidden, what is reconstructed, and the decoder."""

    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """Fraction of the patches that the encoder does not see; drawn for each image and step."""

    normalized_pixels: bool = True
    """Reconstruct each patch after it is normalized by its own mean and standard deviation, which
    gives better features (section 4.1). The loss is then 1 for a constant answer."""

    decoder_dim: Annotated[int, Field(ge=4, le=65_536, multiple_of=4)] | None = None
    """Embedding dimension of the decoder; by default that of the model, but at most 512."""

    decoder_depth: Size = 2
    """Number of the decoder's encoder blocks; a deeper decoder gives better features without
    fine-tuning, and takes longer (section 4.1)."""

    decoder_heads: Size | None = None
    """Attention heads in each block of the decoder; by default one for every 32 dimensions."""


def build(config: MaeConfig, context: ObjectiveContext) -> Objective:
    """Build the objective."""
    from patchline.plugins.objectives.mae_module import MaskedAutoencoding

    return MaskedAutoencoding(config, context)


plugin = ObjectivePlugin(
    summary="Masked autoencoder: pre-training without labels, by reconstructing hidden patches",
    paper="arXiv 2111.06377",
    config_class=MaeConfig,
    build=build,
    uses_labels=False,
)
