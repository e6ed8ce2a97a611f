"""The feature map of a ResNet, one token per position."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from patchline.plugin_api import (
    ConfigError,
    DataTraits,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PluginConfig,
)

if TYPE_CHECKING:
    import torch

_NUM_STAGES = 4
_LARGE_IMAGE = 128
Backbone = Literal["resnet18", "resnet34", "resnet50"]
Grid = tuple[int, int]


class HybridConfig(PluginConfig):
    """The ResNet, and the stage that its feature map is taken from."""

    backbone: Backbone = "resnet18"
    """Which ResNet, with random weights."""

    stage: Annotated[int, Field(ge=1, le=_NUM_STAGES)] | None = None
    """Take the feature map after this stage: a token covers 4, 8, 16 or 32 pixels per side. By
    default the one closest to 8 tokens per side, or 14 for images of 128 pixels or more."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose a default stage, and check that the image is large enough for it."""
        return self.model_copy(update={"stage": self.stage_for(traits.height, traits.width)})

    def stage_for(self, height: int, width: int) -> int:
        """Return the stage for an image, or a default if it is not set.

        Raises:
            ConfigError: if the image is too small for that many stages.
        """
        grids = stage_grids(height, width)
        deepest = sum(before != after for before, after in pairwise(grids))
        stage = self.stage or _default_stage(grids, deepest, min(height, width))
        if stage > deepest:
            remedy = f"Choose at most {deepest}, or raise" if deepest else "Raise"
            raise ConfigError(
                f"stage {stage} is too deep for the {height}x{width} image: stage {deepest + 1} "
                f"would find one pixel to halve. {remedy} data.image_size."
            )
        return stage


def stage_grids(height: int, width: int) -> list[Grid]:
    """Return the grid before the first stage's pooling and after each stage."""
    return [
        (-(-height // stride), -(-width // stride))
        for stride in (2 ** (stage + 1) for stage in range(_NUM_STAGES + 1))
    ]


def _default_stage(grids: list[Grid], deepest: int, side: int) -> int:
    wanted = 14 if side >= _LARGE_IMAGE else 8
    stages = range(1, max(1, deepest) + 1)
    return min(stages, key=lambda stage: (abs(min(grids[stage]) - wanted), stage))


def build(config: HybridConfig, context: PatchEmbeddingContext) -> torch.nn.Module:
    """Build the layer."""
    from torch import nn

    from patchline.plugins.patch_embeddings.feature_map import (
        FeatureMapEmbedding,
        initialize_projection,
    )
    from patchline.plugins.patch_embeddings.standardised_resnet import resnet_up_to

    stage = config.stage_for(context.height, context.width)
    features, width = resnet_up_to(config.backbone, stage, context.channels)
    return FeatureMapEmbedding(
        stage_grids(context.height, context.width)[stage],
        initialize_projection(nn.Conv2d(width, context.embed_dim, kernel_size=1)),
        features=features,
    )


plugin = PatchEmbeddingPlugin(
    summary="The feature map of a ResNet, one token per position",
    paper="arXiv 2010.11929, section 3.1, with the norms of arXiv 1912.11370",
    config_class=HybridConfig,
    build=build,
)
