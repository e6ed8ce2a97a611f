"""Read the data of a run and resolve its settings, without a flow and without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.flows.training.chosen_launcher import chosen_launcher
from patchline.flows.training.reporting import reporting
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.decode import DECODE
from patchline.pipeline.stages.lines import line_of
from patchline.pipeline.workers import prewarm
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.run_memory.shared_stage_memory import SharedStageMemory


@dataclass(frozen=True)
class DryRun:
    """What a run would train on, and with which settings."""

    data: IngestedData
    config: RunConfig
    """Resolved."""
    plan: Plan | None
    """None with the preset none."""
    context: Context
    """What the stages have left."""


def dry_run(config: RunConfig, workspace: Path) -> DryRun:
    """Go through the stages before the images are decoded, and resolve the settings.

    The stages and their notes are displayed.

    Args:
        config: of the run, not resolved.
        workspace: the folder `.patchline`; the split is not remembered in it.

    Raises:
        PipelineError: if the data, the weights or the settings cannot be used.
    """
    stages = line_of(config).stages
    stages = stages[: stages.index(DECODE)]
    memory = SharedStageMemory(workspace, shared=chosen.shared())
    context = Context(config, memory, reporting(), workspace, remembers=False)
    with chosen_launcher(config.launcher):
        prewarm.prewarm_at_start(engine.workers(stages, config))
        list(engine.check(stages, config, workspace))
        engine.run_stages(stages, context)
    data = context.get(IngestedData)
    return DryRun(data, ingestion.resolve(context.config, data), context.find(Plan), context)
