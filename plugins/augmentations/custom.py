"""A user's own albumentations pipeline, from the file that `albumentations.save` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from patchline.plugin_api import (
    Assumptions,
    AugmentationContext,
    AugmentationPlugin,
    ConfigError,
    DataTraits,
    PluginConfig,
)


class CustomConfig(PluginConfig):
    """The file."""

    file: str | None = None
    """YAML or JSON file with an albumentations pipeline, as albumentations.save writes it."""

    sha256: str | None = None
    """SHA-256 digest of the file, recorded when a run starts; a run that is reproduced from its
    config refuses a file that has changed since."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Check the pipeline, and record the file's digest."""
        from patchline.plugins.augmentations.custom_module import read_pipeline

        file = _path(self)
        _, digest = read_pipeline(file, self.sha256)
        return self.model_copy(update={"file": str(file.resolve()), "sha256": digest})


def _path(config: CustomConfig) -> Path:
    if not config.file:
        raise ConfigError(
            "The augmentation custom needs a file. Set augmentation.file to a YAML or JSON file "
            "that albumentations.save wrote."
        )
    return Path(config.file).expanduser()


def build(config: CustomConfig, _context: AugmentationContext) -> Any:
    """Build the transform from the file."""
    from patchline.plugins.augmentations.custom_module import read_pipeline

    pipeline, _ = read_pipeline(_path(config), config.sha256)
    return pipeline


def assumptions(config: CustomConfig) -> Assumptions:
    """Return what the transforms in the file take for granted."""
    from patchline.plugins.augmentations.custom_module import assumed, read_pipeline

    file = _path(config)
    pipeline, _ = read_pipeline(file, config.sha256)
    mirrors, changes = assumed(pipeline)
    words = f"{', '.join(mirrors)} in {file.name}" if mirrors else ""
    return Assumptions(mirrors=words, changes=changes)


plugin = AugmentationPlugin(
    summary="Your own albumentations pipeline from a YAML or JSON file",
    paper="",
    config_class=CustomConfig,
    build=build,
    assumptions=assumptions,
)
