"""Package the classifier and check the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.seen_images import seen_images_notes
from patchline.pipeline.evaluation.evaluating import PREDICTIONS_FILE, Evaluated
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.files.file_digest import digest_of
from patchline.pipeline.initial_weights.recipe import display_name
from patchline.pipeline.initial_weights.starting_point import StartingPoint
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.packaging.job import Package
from patchline.pipeline.packaging.model_card import CardFacts
from patchline.pipeline.packaging.packaging import MODULE, package_model
from patchline.pipeline.run_memory import stage_keys
from patchline.pipeline.run_memory.stage_memory import Ingredients
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.tracking import provenance
from patchline.pipeline.tracking.tracked_run import TrackedRun
from patchline.pipeline.training.parts import run_parts
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.prewarm import Worker

FOLDER = "package"


@dataclass(frozen=True)
class PackageInputs:
    """The weights, and the report with the calibration and the predictions to compare with."""

    evaluated: Evaluated
    trained: TrainResult
    data: IngestedData
    prepared: PreparedData
    start: StartingPoint | None
    run: TrackedRun


class PackageModel(Stage[PackageInputs, Package]):
    """Leaves the package: ONNX, weights, model card, and a server that needs no torch."""

    name = "package"
    task = "Package the model"
    reads = PackageInputs
    leaves = Package
    worker = Worker(MODULE, accelerator=False)
    code = (
        f"{MODULE}.__main__",
        "patchline.pipeline.packaging.mlflow_classifier",
        "patchline.pipeline.layers",
    )
    rehearsal = "Packaging the model and checking the package"

    def title(self, context: Context, inputs: PackageInputs) -> str:
        """Return what is done."""
        return "Packaging the model and checking the package"

    def task_run(self, context: Context, inputs: PackageInputs) -> str:
        """Return what is done, with the accuracy on the test images."""
        accuracy = inputs.evaluated.report.accuracy.value
        return f"Package the model ({accuracy:.1%}) and check the package"

    def key(self, context: Context, inputs: PackageInputs) -> Ingredients:
        """Return everything that determines the package."""
        report = inputs.evaluated.report
        return {
            **self._trained(context, inputs).ingredients,
            "calibration": report.calibration.model_dump_json(),
            "reported": digest_of(inputs.evaluated.folder / PREDICTIONS_FILE).sha256,
            "card": self._card(context, inputs).model_dump_json(),
            "code": stage_keys.code(*self.code),
        }

    def folder(self, context: Context, inputs: PackageInputs, result: Package | None) -> Path:
        """Return the folder of the package."""
        return inputs.run.folder / FOLDER

    def compute(self, context: Context, inputs: PackageInputs) -> Package:
        """Export to ONNX, and compare with the reported predictions."""
        return package_model(
            self._trained(context, inputs),
            inputs.evaluated,
            self._card(context, inputs),
            inputs.run.folder / FOLDER,
            context.reporting.event,
        )

    def _trained(self, context: Context, inputs: PackageInputs) -> TrainedRun:
        return TrainedRun(context.config, inputs.data, inputs.prepared, inputs.trained)

    def _card(self, context: Context, inputs: PackageInputs) -> CardFacts:
        run, metrics = self._trained(context, inputs), inputs.evaluated.report.metrics
        return card_facts(run, metrics, inputs.start)


def card_facts(
    run: TrainedRun, metrics: dict[str, MetricEstimate], start: StartingPoint | None
) -> CardFacts:
    """Return the facts for the model card that only the run knows."""
    config, data = run.config, run.data
    return CardFacts(
        name=str(config.name),
        images=data.counts,
        metrics=metrics,
        initial_weights=display_name(config.model.init) if config.model.init else "",
        license=start.weights.license if start and start.weights else "",
        seen_before=tuple(seen_images_notes(data.seen_before, data.counts)),
        training=run_parts.length(run.trained),
        commit=provenance.commit()[0][:12],
    )


PACKAGE = PackageModel()
