"""Small shifts, rotations and changes of scale; mirror images where that keeps the class."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field

from pipeline.plugin_api import AugmentationContext, AugmentationPlugin, DataTraits, PluginConfig

Share = Annotated[float, Field(ge=0, le=0.5)]


class LightConfig(PluginConfig):
    """Strength of the random changes."""

    horizontal_flip: bool | None = None
    """Mirror half of the images; by default only if the data is mirror-symmetric."""

    shift: Share = 0.12
    """Largest shift in each direction, as a fraction of the side."""

    scale: Share = 0.15
    """Largest change of scale, up or down, as a fraction."""

    rotation: Annotated[float, Field(ge=0, le=180)] = 15.0
    """Largest rotation in either direction, in degrees."""

    brightness: Share = 0.1
    """Largest change of brightness and contrast, as a fraction."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Mirror only if a mirrored image still shows its class."""
        if self.horizontal_flip is not None:
            return self
        return self.model_copy(update={"horizontal_flip": traits.mirror_symmetric})


def build(config: LightConfig, _context: AugmentationContext) -> Any:
    """Build the transform."""
    import albumentations
    import cv2

    return albumentations.Compose(
        [
            albumentations.HorizontalFlip(p=0.5 if config.horizontal_flip else 0.0),
            albumentations.Affine(
                scale=(1 - config.scale, 1 + config.scale),
                translate_percent=(-config.shift, config.shift),
                rotate=(-config.rotation, config.rotation),
                border_mode=cv2.BORDER_REFLECT_101,
                p=1.0,
            ),
            albumentations.RandomBrightnessContrast(
                brightness_limit=config.brightness, contrast_limit=config.brightness, p=0.5
            ),
        ]
    )


plugin = AugmentationPlugin(
    summary="Small shifts, rotations, changes of scale and brightness, and mirroring",
    paper="",
    config_class=LightConfig,
    build=build,
)
