"""What a run gets from outside: the launcher that its config names, its memory, how it reports."""

from __future__ import annotations

from contextlib import AbstractContextManager

from patchline.flows.progress.progress_display import display, show_event
from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.plugin_system.plugin_settings import build_launcher
from patchline.pipeline.stages.stage import Context, Reporting
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Launcher
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, place
from patchline.pipeline.workspace.run_memory.shared_stage_memory import SharedStageMemory
from patchline.pipeline.workspace.tracking.tracked_run import FLOW_RUN_TAG


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


def build_memory(*, fresh: bool) -> SharedStageMemory:
    """Return the results of earlier runs in this workspace; of none of them with `fresh`."""
    return SharedStageMemory(
        WORKSPACE.resolve(), fresh=fresh, on_note=display().note, shared=chosen.find_shared_files()
    )


def build_context(config: RunConfig, *, fresh: bool) -> Context:
    """Return what the stages of a flow's run work with, before the first of them."""
    from prefect.runtime import flow_run

    memory, tags = build_memory(fresh=fresh), {FLOW_RUN_TAG: str(flow_run.id or "")}
    return Context(config, memory, build_reporting(), WORKSPACE.resolve(), tags=tags)
