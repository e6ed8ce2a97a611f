"""Choose or find the initial weights of a run, and let its settings follow them.

The choice is remembered, as a plan is; the initial weights are then found as if they had been set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.seen_images import seen_images_notes, with_seen_images
from patchline.pipeline.data.symmetry.assumed_symmetries import notes_on_mirroring_weights
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.weights_choice import WeightsChoice, suits
from patchline.pipeline.stages.stage import Context, Stage
from patchline.pipeline.training.initial_weights.starting_point import (
    StartingPoint,
    check_published,
    starting_point,
)
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run


@dataclass(frozen=True)
class ChooseWeightsInputs:
    """The images, for which trained weights may help or not."""

    data: IngestedData


class ChooseWeightsStage(Stage[ChooseWeightsInputs, WeightsChoice]):
    """Leaves the choice; the plan names its reasons."""

    name = "weights"
    task = "Choose the initial weights"
    reads = ChooseWeightsInputs
    output = WeightsChoice
    code = planner.CODE
    shared = at_once = True

    def applies(self, config: RunConfig) -> bool:
        """Return whether a plan is made, and the user has left model and weights to it."""
        return config.preset is not None and planner.may_choose_weights(config)

    def is_needed(self, context: Context, inputs: ChooseWeightsInputs) -> bool:
        """Return whether trained weights may help: not with thumbnails and greyscale images."""
        return suits(planner.plan_facts(context.config, inputs.data).data)

    def title(self, context: Context, inputs: ChooseWeightsInputs) -> str:
        """Return what is looked for."""
        return "Looking for pre-trained weights on this machine"

    def key(self, context: Context, inputs: ChooseWeightsInputs) -> Ingredients:
        """Return everything that decides the choice, but the measurement."""
        return planner.weights_ingredients(context.config, inputs.data)

    def folder(
        self, context: Context, inputs: ChooseWeightsInputs, result: WeightsChoice | None
    ) -> Path:
        """Return a folder without files: a choice has none."""
        return context.memory.workspace / "plans"

    def compute(self, context: Context, inputs: ChooseWeightsInputs) -> WeightsChoice:
        """Search, convert what is worth trying, and measure it in a process of its own."""
        return planner.choose_weights(context.config, inputs.data, context.workspace)

    def is_cacheable(self, result: WeightsChoice) -> bool:
        """Return whether all weights could be measured; else a later run tries again."""
        return result.measured

    def reuse(self, config: RunConfig) -> str:
        """Return what is used again."""
        return "its choice is used again"

    def after(self, context: Context, inputs: ChooseWeightsInputs, result: WeightsChoice) -> None:
        """Set the weights that were chosen."""
        if result.reference:
            model = context.config.model.model_copy(update={"init": result.reference})
            context.config = context.config.model_copy(update={"model": model})


CHOOSE_WEIGHTS = ChooseWeightsStage()


@dataclass(frozen=True)
class InitialWeightsInputs:
    """The images, of which the weights may have seen some."""

    data: IngestedData


class InitialWeightsStage(Stage[InitialWeightsInputs, StartingPoint]):
    """Leaves the weights and the settings that follow them.

    Finding weights again is fast, so the result is not remembered.
    """

    name = "initialize"
    task = "Find the initial weights"
    reads = InitialWeightsInputs
    output = StartingPoint

    def applies(self, config: RunConfig) -> bool:
        """Return whether the settings name weights."""
        return bool(config.model.init)

    def check(self, config: RunConfig, workspace: Path) -> str:
        """Find weights that are a file or published."""
        check_published(config, workspace)
        return ""

    def title(self, context: Context, inputs: InitialWeightsInputs) -> str:
        """Return what is sought."""
        return f"Finding the initial weights ({context.config.model.init})"

    def task_run(self, context: Context, inputs: InitialWeightsInputs) -> str:
        """Return what is sought."""
        return f"Find the initial weights {context.config.model.init}"

    def compute(self, context: Context, inputs: InitialWeightsInputs) -> StartingPoint:
        """Find the weights, and count the images that they have seen."""
        data = inputs.data
        return starting_point(
            context.config, data.name, context.workspace, data.manifest_file, data.classes
        )

    def after(self, context: Context, inputs: InitialWeightsInputs, result: StartingPoint) -> None:
        """Show what the weights are; the data then tells what they have seen of it."""
        data, seen = inputs.data, result.seen_before
        mirroring = notes_on_mirroring_weights(context.config, result.config, data.mirror)
        for sentence in (*result.notes(), *seen_images_notes(seen, data.counts), *mirroring):
            context.reporting.note(sentence)
        context.config = result.config
        noted = data.model_copy(update={"notes": (*data.notes, *mirroring)})
        context.put(with_seen_images(noted, seen))

    def tags(
        self, context: Context, inputs: InitialWeightsInputs, result: StartingPoint
    ) -> dict[str, str]:
        """Return which weights they are, and what they have seen."""
        seen = seen_images_notes(inputs.data.seen_before, inputs.data.counts)
        return {**({tracked_run.SEEN_TAG: "; ".join(seen)} if seen else {}), **result.tags()}


INITIAL_WEIGHTS = InitialWeightsStage()
