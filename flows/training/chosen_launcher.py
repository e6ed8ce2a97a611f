"""What a run gets from outside: the launcher that its config names, and how it reports."""

from __future__ import annotations

from contextlib import AbstractContextManager

from patchline.flows.progress.progress_display import display, show_event
from patchline.pipeline.config import PluginChoice
from patchline.pipeline.plugin_system.plugin_settings import build_launcher
from patchline.pipeline.stages.stage import Reporting
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Launcher
from patchline.pipeline.workspace.files.workspace_folder import place


def use_chosen_launcher(choice: PluginChoice) -> AbstractContextManager[Launcher]:
    """Use a launcher inside the block, unless an outer block uses the same one already.

    Raises:
        PluginError: for a launcher that is unknown or broken.
        ConfigError: for a setting that it does not have.
    """
    description = choice.model_dump_json()
    return worker_start.use_launcher(description, lambda: build_launcher(choice, place()))


def build_reporting() -> Reporting:
    """Return the functions of the current display."""
    return Reporting(display().stage, display().note, display().advance, show_event)
