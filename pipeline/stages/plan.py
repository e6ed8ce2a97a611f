"""Plan the training, for a run with a preset: from the data, the machine and measured speeds.

A remembered plan keeps the settings of later runs, and so their stages, the same; a new measurement
would vary with what else the machine does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.planning.measuring_job import MEASURING
from patchline.pipeline.planning.weights_choice import WeightsChoice
from patchline.pipeline.stages.stage import Context, Stage
from patchline.pipeline.training.initial_weights.record import InitialWeights
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

JSON_FILE, TEXT_FILE = "plan.json", "plan.txt"


@dataclass(frozen=True)
class PlanInputs:
    """The images to train on, and the weights that were chosen or found, if any."""

    data: IngestedData
    choice: WeightsChoice | None
    start: StartingPoint | None

    @property
    def weights(self) -> InitialWeights | None:
        """The initial weights."""
        return self.start.weights if self.start else None


class PlanStage(Stage[PlanInputs, Plan]):
    """Leaves the plan, whose settings replace the preset."""

    name = "plan"
    task = "Plan the training"
    reads = PlanInputs
    output = Plan
    worker = MEASURING
    code = planner.CODE
    shared = at_once = True

    def applies(self, config: RunConfig) -> bool:
        """Return whether there is a preset to fill in."""
        return config.preset is not None

    def title(self, context: Context, inputs: PlanInputs) -> str:
        """Return the preset, and the time limit if there is one."""
        preset, limit = context.config.preset, context.config.training.time_limit
        within = f" for {limit}" if limit else ""
        return f"Planning the training (preset {preset.name if preset else 'none'}{within})"

    def task_run(self, context: Context, inputs: PlanInputs) -> str:
        """Return the preset, too."""
        return self.title(context, inputs)

    def key(self, context: Context, inputs: PlanInputs) -> Ingredients:
        """Return everything that decides a plan, but the measurement."""
        return planner.ingredients(context.config, inputs.data, inputs.choice, inputs.weights)

    def folder(self, context: Context, inputs: PlanInputs, result: Plan | None) -> Path:
        """Return a folder without files: a plan has none."""
        return context.memory.workspace / "plans"

    def compute(self, context: Context, inputs: PlanInputs) -> Plan:
        """Measure in a process of its own, and plan."""
        workspace, note = context.memory.workspace, context.reporting.note
        return planner.planned(
            context.config, inputs.data, workspace, note, inputs.choice, inputs.weights
        )

    def is_cacheable(self, result: Plan) -> bool:
        """Return whether speeds were measured; an estimate is not kept."""
        return bool(result.facts.speeds)

    def reuse(self, config: RunConfig) -> str:
        """Return what is used again."""
        return "its plan is used again"

    def after(self, context: Context, inputs: PlanInputs, result: Plan) -> None:
        """Show the plan in short, and replace the preset by its settings."""
        if context.remembers:  # a dry run prints it with its reasons
            reasons = f"why: `--dry-run` prints the reasons, {TEXT_FILE} of the run keeps them"
            for line in (*result.summary, *([reasons] if result.reasons else [])):
                context.reporting.note(line)
        context.config = planner.with_plan(context.config, result)

    def tags(self, context: Context, inputs: PlanInputs, result: Plan) -> dict[str, str]:
        """Return the preset."""
        return {"patchline.preset": result.facts.preset}

    def log(self, context: Context, inputs: PlanInputs, result: Plan, run: TrackedRun) -> None:
        """Keep the plan with the run: its facts and settings, and its text."""
        for name, text in (
            (JSON_FILE, result.model_dump_json(indent=2)),
            (TEXT_FILE, result.text()),
        ):
            file = run.folder / name
            write_text(file, text)
            tracked_run.log_file(run, file)


PLAN = PlanStage()
