"""Masked autoencoder: pre-training without labels, by reconstructing hidden patches.

The networks are in `patchline.plugins.objectives.mae_module`, which imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from patchline.plugin_api import Objective, ObjectiveContext, ObjectivePlugin, PluginConfig

if TYPE_CHECKING:
    import torch

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


class MaskedAutoencoding(Objective):
    """Train the model as the encoder of a masked autoencoder, without labels."""

    def __init__(self, config: MaeConfig, context: ObjectiveContext) -> None:
        self.config, self.image = config, context.image

    def training_module(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model with a decoder.

        Raises:
            ConfigError: if the model cannot hide patches, or patches do not tile the image.
        """
        from patchline.plugins.objectives.mae_module import MaskedAutoencoder

        return MaskedAutoencoder(model, self.image, **self.config.model_dump())

    def model_in(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the encoder."""
        return module.get_submodule("model")

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - there are no labels
        """Return the mean of the images' losses."""
        return outputs.float().mean()

    def pictures(
        self, module: torch.nn.Module, images_BCHW: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the images, their visible patches, and the reconstructions of the hidden ones."""
        from patchline.plugins.objectives.mae_module import MaskedAutoencoder

        if not isinstance(module, MaskedAutoencoder):
            raise TypeError("the module is no masked autoencoder")
        visible_BCHW, reconstructed_BCHW = module.reconstructed(images_BCHW)
        how = " at each patch's own mean and scale" if self.config.normalized_pixels else ""
        return {
            "Image": images_BCHW,
            "Visible patches": visible_BCHW,
            f"Reconstruction{how}": reconstructed_BCHW,
        }


plugin = ObjectivePlugin(
    summary="Masked autoencoder: pre-training without labels, by reconstructing hidden patches",
    paper="arXiv 2111.06377",
    config_class=MaeConfig,
    build=MaskedAutoencoding,
    uses_labels=False,
)
