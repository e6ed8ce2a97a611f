"""Find the initial weights of a run, if it names some, and let its settings follow them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.seen_images import seen_images_notes, with_seen_images
from patchline.pipeline.data.symmetry.assumed_symmetries import notes_on_mirroring_weights
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.initial_weights.starting_point import (
    StartingPoint,
    check_published,
    starting_point,
)
from patchline.pipeline.workspace.tracking import tracked_run


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
