"""Settings shared by embeddings that cut an image into square patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from patchline.plugin_api import ConfigError, DataTraits, PluginConfig

_LARGEST_DEFAULT = 16
_WANTED_GRID = 8


class PatchGridConfig(PluginConfig):
    """The side of the patches."""

    patch_size: Annotated[int, Field(ge=1, le=512)] | None = None
    """Side of a patch in pixels; must divide the image. By default about 8 patches per side, at
    most 16 pixels each."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose a default patch size, and check that it divides the image."""
        patch_size = self.patch_size_for(traits.height, traits.width)
        return self.model_copy(update={"patch_size": patch_size})

    def patch_size_for(self, height: int, width: int) -> int:
        """Return the patch size for an image, or a default if it is not set.

        Raises:
            ConfigError: if it does not fit the image.
        """
        patch_size = self.patch_size or default_patch_size(height, width)
        check_divides(f"patch_size {patch_size}", patch_size, height, width)
        return patch_size


def default_patch_size(height: int, width: int) -> int:
    """Return the common divisor, 2 to 16, that comes closest to 8 patches per side."""
    candidates = [p for p in common_divisors(height, width) if p > 1]
    return nearest_patch_size(candidates, height, width)


def nearest_patch_size(candidates: Sequence[int], height: int, width: int) -> int:
    """Return the candidate up to 16 that is closest to 8 patches per side; 1 if there is none."""
    small = [p for p in candidates if p <= _LARGEST_DEFAULT]
    return min(small or [1], key=lambda p: (abs(min(height, width) / p - _WANTED_GRID), -p))


def common_divisors(height: int, width: int) -> list[int]:
    """Return every patch size that divides both sides, including 1, in ascending order."""
    return [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]


def check_divides(subject: str, patch_size: int, height: int, width: int) -> None:
    """Refuse a patch size that does not divide the image.

    Args:
        subject: the name of the setting in the error.
        patch_size: the side of a patch in pixels.
        height: the height of the image in pixels.
        width: the width of the image in pixels.

    Raises:
        ConfigError: listing every patch size that does.
    """
    if height % patch_size or width % patch_size:
        divisors = [str(p) for p in common_divisors(height, width) if p > 1]
        choices = f"one of {', '.join(divisors)}" if divisors else "1"
        raise ConfigError(
            f"{subject} does not divide the {height}x{width} image. Choose {choices}, or change "
            "data.image_size."
        )


def nearby_even_size(height: int, width: int) -> int:
    """Return the multiple of 8 pixels nearest to the shorter side, to suggest in an error."""
    return max(8, 8 * round(min(height, width) / 8))
