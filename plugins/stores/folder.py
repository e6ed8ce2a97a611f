"""Objects in a folder, such as one that several machines mount."""

from __future__ import annotations

from pathlib import Path

from patchline.plugin_api import ConfigError, FolderStore, PluginConfig, StoreContext, StorePlugin


class FolderConfig(PluginConfig):
    """There is nothing to set."""


def build(_config: FolderConfig, context: StoreContext) -> FolderStore:
    """Build the store of a folder.

    Raises:
        ConfigError: if the folder does not exist: its disk may not be mounted.
    """
    folder = Path(context.address.prefix)
    if not folder.is_dir():
        raise ConfigError(
            f"There is no folder {folder} for {context.address}. Create it, or mount its disk."
        )
    return FolderStore(folder)


plugin = StorePlugin(
    summary="Objects in a folder, such as one that several machines mount",
    paper="",
    config_class=FolderConfig,
    build=build,
    example=lambda folder: folder.as_uri(),
)
