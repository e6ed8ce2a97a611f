"""Choose or find the initial weights of a run, and let its settings follow them.

The choice is remembered, as a plan is; the initial weights are then found as if they had been set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.seen_images import describe_seen_images, with_seen_images
from patchline.pipeline.data.symmetry.assumed_symmetries import notes_on_mirroring_weights
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.weights_choice import WeightsChoice, suits
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.config import with_changes
from patchline.pipeline.training.initial_weights.starting_point import (
    StartingPoint,
    check_published,
    find_starting_point,
)
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run


@dataclass(frozen=True)
class ChooseWeights(Stage[WeightsChoice]):
    """Leaves the choice; the plan names its reasons."""

    name = "weights"
    task = "Choose the initial weights"
    output = WeightsChoice
    code = planner.CODE
    shared = at_once = True

    data: IngestedData

    @staticmethod
    def applies(config: RunConfig) -> bool:
        """Return whether a plan is made, and the user has left model and weights to it."""
        return config.preset is not None and planner.may_choose_weights(config)

    def is_needed(self) -> bool:
        """Return whether trained weights may help: not with thumbnails and greyscale images."""
        return suits(planner.plan_facts(self.config, self.data).data)

    def title(self) -> str:
        """Return what is looked for."""
        return "Looking for pre-trained weights on this machine"

    def key(self) -> Ingredients:
        """Return everything that decides the choice, but the measurement."""
        return planner.weights_ingredients(self.config, self.data)

    def folder(self, result: WeightsChoice | None) -> Path:
        """Return a folder without files: a choice has none."""
        return self.context.memory.workspace / "plans"

    def compute(self) -> WeightsChoice:
        """Search, convert what is worth trying, and measure it in a process of its own."""
        context = self.context
        before = context.seconds_before_training
        return planner.choose_weights(self.config, self.data, context.workspace, before)

    def is_cacheable(self, result: WeightsChoice) -> bool:
        """Return whether all weights could be measured; else a later run tries again."""
        return result.measured

    def reuse(self) -> str:
        """Return what is used again."""
        return "its choice is used again"

    def after(self, result: WeightsChoice) -> None:
        """Set the weights that were chosen."""
        if result.reference:
            self.context.config = with_changes(self.config, model={"init": result.reference})


@dataclass(frozen=True)
class FindWeights(Stage[StartingPoint]):
    """Leaves the weights and the settings that follow them.

    Finding weights again is fast, so the result is not remembered.
    """

    name = "initialize"
    task = "Find the initial weights"
    output = StartingPoint

    data: IngestedData

    @staticmethod
    def applies(config: RunConfig) -> bool:
        """Return whether the settings name weights."""
        return bool(config.model.init)

    @staticmethod
    def check(config: RunConfig, workspace: Path) -> str:
        """Find weights that are a file or published."""
        check_published(config, workspace)
        return ""

    def title(self) -> str:
        """Return what is sought."""
        return f"Finding the initial weights ({self.config.model.init})"

    def task_run(self) -> str:
        """Return what is sought."""
        return f"Find the initial weights {self.config.model.init}"

    def compute(self) -> StartingPoint:
        """Find the weights, and count the images that they have seen."""
        data = self.data
        return find_starting_point(
            self.config, data.name, self.context.workspace, data.manifest_file, data.classes
        )

    def after(self, result: StartingPoint) -> None:
        """Show what the weights are; the data then tells what they have seen of it."""
        data, seen = self.data, result.seen_before
        mirroring = notes_on_mirroring_weights(self.config, result.config, data.mirror)
        for sentence in (*result.notes(), *describe_seen_images(seen, data.counts), *mirroring):
            self.context.reporting.note(sentence)
        self.context.config = result.config
        noted = data.model_copy(update={"notes": (*data.notes, *mirroring)})
        self.context.put(with_seen_images(noted, seen))

    def tags(self, result: StartingPoint) -> dict[str, str]:
        """Return which weights they are, and what they have seen."""
        seen = describe_seen_images(self.data.seen_before, self.data.counts)
        return {**({tracked_run.SEEN_TAG: "; ".join(seen)} if seen else {}), **result.tags()}
