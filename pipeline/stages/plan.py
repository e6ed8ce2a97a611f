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
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.initial_weights.record import InitialWeights
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

JSON_FILE, TEXT_FILE = "plan.json", "plan.txt"


@dataclass(frozen=True)
class PlanTraining(Stage[Plan]):
    """Leaves the plan, whose settings replace the preset."""

    name = "plan"
    task = "Plan the training"
    output = Plan
    worker = MEASURING
    code = planner.CODE
    shared = at_once = True

    data: IngestedData
    choice: WeightsChoice | None
    start: StartingPoint | None

    @property
    def weights(self) -> InitialWeights | None:
        """The initial weights."""
        return self.start.weights if self.start else None

    @staticmethod
    def applies(config: RunConfig) -> bool:
        """Return whether there is a preset to fill in."""
        return config.preset is not None

    def title(self) -> str:
        """Return the preset, and the time limit if there is one."""
        preset, limit = self.config.preset, self.config.training.time_limit
        within = f" for {limit}" if limit else ""
        return f"Planning the training (preset {preset.name if preset else 'none'}{within})"

    def task_run(self) -> str:
        """Return the preset, too."""
        return self.title()

    def key(self) -> Ingredients:
        """Return everything that decides a plan, but the measurement."""
        return planner.ingredients(self.config, self.data, self.choice, self.weights)

    def folder(self, result: Plan | None) -> Path:
        """Return a folder without files: a plan has none."""
        return self.context.memory.workspace / "plans"

    def compute(self) -> Plan:
        """Measure in a process of its own, and plan."""
        context = self.context
        return planner.plan_run(
            self.config,
            self.data,
            context.memory.workspace,
            context.reporting.note,
            self.choice,
            self.weights,
            before=lambda: context.seconds_before_training,
            planned=context.seconds.get("weights", 0.0),
        )

    def is_cacheable(self, result: Plan) -> bool:
        """Return whether speeds were measured; an estimate is not kept."""
        return bool(result.facts.speeds)

    def reuse(self) -> str:
        """Return what is used again."""
        return "its plan is used again"

    def after(self, result: Plan) -> None:
        """Show the plan in short, and replace the preset by its settings."""
        if self.context.remembers:  # a dry run prints it with its reasons
            reasons = f"why: `patchline run --dry-run` and {TEXT_FILE} of a run give the reasons"
            for line in (*result.summary, *([reasons] if result.reasons else [])):
                self.context.reporting.note(line)
        self.context.config = planner.with_plan(self.config, result)

    def tags(self, result: Plan) -> dict[str, str]:
        """Return the preset."""
        return {"patchline.preset": result.facts.preset}

    def log(self, result: Plan, run: TrackedRun) -> None:
        """Keep the plan with the run: its facts and settings, and its text."""
        for name, text in (
            (JSON_FILE, result.model_dump_json(indent=2)),
            (TEXT_FILE, result.text()),
        ):
            file = run.folder / name
            write_text(file, text)
            tracked_run.log_file(run, file)
