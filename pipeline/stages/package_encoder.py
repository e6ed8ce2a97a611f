"""Package an encoder that was trained without labels, and check the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.initial_weights.starting_point import StartingPoint
from patchline.pipeline.packaging.job import Package
from patchline.pipeline.packaging.model_card import CardFacts
from patchline.pipeline.packaging.packaging import MODULE, package_model
from patchline.pipeline.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.run_memory import stage_keys
from patchline.pipeline.run_memory.stage_memory import Ingredients
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.package import FOLDER, card_facts
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.tracking.tracked_run import TrackedRun
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.prewarm import Worker


@dataclass(frozen=True)
class PackageEncoderInputs:
    """The weights, and the report, whose loss the model card names."""

    trained: TrainResult
    evaluated: PretrainingEvaluated
    data: IngestedData
    prepared: PreparedData
    start: StartingPoint | None
    run: TrackedRun


class PackageEncoder(Stage[PackageEncoderInputs, Package]):
    """Leaves the package of an encoder."""

    name = "package"
    task = "Package the encoder"
    reads = PackageEncoderInputs
    leaves = Package
    worker = Worker(MODULE, accelerator=False)
    code = (
        f"{MODULE}.__main__",
        "patchline.pipeline.packaging.mlflow_classifier",
        "patchline.pipeline.layers",
    )
    rehearsal = "Packaging the encoder and checking the package"

    def title(self, context: Context, inputs: PackageEncoderInputs) -> str:
        """Return what is done."""
        return "Packaging the encoder and checking the package"

    def key(self, context: Context, inputs: PackageEncoderInputs) -> Ingredients:
        """Return everything that determines the package."""
        return {
            **self._trained(context, inputs).ingredients,
            "card": self._card(context, inputs).model_dump_json(),
            "code": stage_keys.code(*self.code),
        }

    def folder(
        self, context: Context, inputs: PackageEncoderInputs, result: Package | None
    ) -> Path:
        """Return the folder of the package."""
        return inputs.run.folder / FOLDER

    def compute(self, context: Context, inputs: PackageEncoderInputs) -> Package:
        """Export to ONNX, and compare with the trained encoder."""
        return package_model(
            self._trained(context, inputs),
            None,
            self._card(context, inputs),
            inputs.run.folder / FOLDER,
            context.reporting.event,
        )

    def _trained(self, context: Context, inputs: PackageEncoderInputs) -> TrainedRun:
        return TrainedRun(context.config, inputs.data, inputs.prepared, inputs.trained)

    def _card(self, context: Context, inputs: PackageEncoderInputs) -> CardFacts:
        run, metrics = self._trained(context, inputs), inputs.evaluated.report.metrics
        return card_facts(run, metrics, inputs.start)


PACKAGE_ENCODER = PackageEncoder()
