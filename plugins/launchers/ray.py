"""A Ray cluster: stages compute where there is room, training on one or several nodes.

Ray allocates; what runs is the same worker processes as on this machine, and torch's own agent for
those that train together. This process never connects to Ray: a driver process does
(`ray_driver.py`), and this module talks to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchline.plugin_api import LauncherContext, LauncherPlugin
from patchline.plugins.launchers.ray_settings import RayConfig

if TYPE_CHECKING:
    from patchline.plugins.launchers.ray_launcher import RayLauncher


def build(config: RayConfig, context: LauncherContext) -> RayLauncher:
    """Build the launcher; the cluster is contacted when the first worker is needed."""
    from patchline.plugins.launchers.ray_launcher import RayLauncher

    return RayLauncher(config, context)


plugin = LauncherPlugin(
    summary="A Ray cluster: stages compute where there is room, training on one or several nodes",
    paper="arXiv 1712.05889",
    config_class=RayConfig,
    build=build,
)
