"""What all embeddings that cut an image into square patches have in common."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from pipeline.plugin_api import ConfigError, DataTraits, PluginConfig

_LARGEST_DEFAULT = 16
_WANTED_GRID = 8


class PatchGridConfig(PluginConfig):
    """The side of the patches."""

    patch_size: Annotated[int, Field(ge=1, le=512)] | None = None
    """Side of a patch in pixels; must divide the image. By default about 8 patches a side, at most
    16 pixels each."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose the patch size if it is open, and check that it divides the image."""
        height, width = traits.height, traits.width
        patch_size = self.patch_size or default_patch_size(height, width)
        if height % patch_size or width % patch_size:
            raise ConfigError(
                f"patch_size {patch_size} does not divide the {height}x{width} image. Choose "
                f"{_divisors_text(height, width)}, or change data.image_size."
            )
        return self.model_copy(update={"patch_size": patch_size})


def default_patch_size(height: int, width: int) -> int:
    """Return the common divisor, 2 to 16, that comes closest to 8 patches a side."""
    candidates = [p for p in _common_divisors(height, width) if 1 < p <= _LARGEST_DEFAULT]
    return min(candidates or [1], key=lambda p: (abs(min(height, width) / p - _WANTED_GRID), -p))


def _common_divisors(height: int, width: int) -> list[int]:
    return [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]


def _divisors_text(height: int, width: int) -> str:
    divisors = [str(p) for p in _common_divisors(height, width) if p > 1]
    return f"one of {', '.join(divisors)}" if divisors else "1"
