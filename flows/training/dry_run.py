"""Read the data of a run and resolve its settings, without a flow and without training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from flows.progress import display
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.assumed_symmetries import notes_on_mirroring_weights
from pipeline.data.ingested_data import IngestedData
from pipeline.data.seen_images import notes_on_seen, with_seen
from pipeline.initial_weights.stage import check_published, starting_point
from pipeline.planning import stage as planning
from pipeline.planning.facts import Plan
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.workers import prewarm


@dataclass(frozen=True)
class DryRun:
    """What a run would train on, and with which settings."""

    data: IngestedData
    config: RunConfig
    """Resolved."""
    plan: Plan | None
    """None without a preset."""
    reading_seconds: float


def dry_run(config: RunConfig, workspace: Path) -> DryRun:
    """Read the data, find the initial weights, plan the training, and resolve the settings.

    The stages and their notes are displayed; the caller displays the plan.

    Args:
        config: of the run, not resolved.
        workspace: the folder `.patchline`; the split is not remembered in it.

    Raises:
        PipelineError: if the data, the weights or the settings cannot be used.
    """
    if config.preset:
        prewarm.planning()
    ingestion.check_source(config, workspace)
    check_published(config, workspace)
    display().stage(f"Reading the data ({config.data.path or config.data.source})")
    began = time.monotonic()
    data = ingestion.ingest(config, workspace, display().advance, remember=False)
    seconds = time.monotonic() - began
    _show(data.findings())
    if config.model.init:
        display().stage(f"Finding the initial weights ({config.model.init})")
        start = starting_point(config, data.name, workspace, data.manifest_file, data.classes)
        mirroring = notes_on_mirroring_weights(config, start.config, data.mirror)
        _show([*start.notes(), *notes_on_seen(start.seen_before, data.counts), *mirroring])
        data = with_seen(data, start.seen_before)
        config = start.config
    plan = None
    if config.preset:
        display().stage("Planning the training")
        plan = planning.planned(config, data, StageMemory(workspace), display().note)
        config = planning.with_plan(config, plan)
    return DryRun(data, ingestion.resolve(config, data), plan, seconds)


def _show(notes: list[str]) -> None:
    for note in notes:
        display().note(note)
