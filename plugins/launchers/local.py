"""This machine: each stage computes in a process of its own."""

from __future__ import annotations

from patchline.plugin_api import LauncherContext, LauncherPlugin, LocalLauncher, PluginConfig


class LocalConfig(PluginConfig):
    """There is nothing to set."""


def build(_config: LocalConfig, _context: LauncherContext) -> LocalLauncher:
    """Build the launcher that starts processes of this machine."""
    return LocalLauncher()


plugin = LauncherPlugin(
    summary="This machine: each stage computes in a process of its own",
    paper="",
    config_class=LocalConfig,
    build=build,
)
