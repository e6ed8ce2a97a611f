"""Choose between random weights and those at hand, for a run whose user has set neither.

The choice is remembered, as a plan is; the initial weights are then found as if they had been set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.weights_choice import WeightsChoice
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients


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
        return planner.wants_weights(context.config, inputs.data)

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
