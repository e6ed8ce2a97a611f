"""Evaluate a classifier or an encoder on the test images, and write the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.evaluation import evaluating
from patchline.pipeline.evaluation.answers_report import REFERENCE_FILE
from patchline.pipeline.evaluation.cost import (
    corrupted_images,
    evaluation_seconds,
    predicted_images,
)
from patchline.pipeline.evaluation.evaluating import FOLDER, Evaluated
from patchline.pipeline.evaluation.galleries import EXPLANATIONS
from patchline.pipeline.evaluation.prediction_job import EVALUATION
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE
from patchline.pipeline.registry import registration
from patchline.pipeline.registry.registered_models import TEST_IMAGES_TAG
from patchline.pipeline.stages.stage import Context, Stage
from patchline.pipeline.training.pretraining import evaluating as encoder_evaluating
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class EvaluateInputs:
    """The weights and the images."""

    trained: TrainResult
    data: IngestedData
    prepared: PreparedData
    run: TrackedRun

    def of(self, config: RunConfig) -> TrainedRun:
        """Return them together with the settings."""
        return TrainedRun(config, self.data, self.prepared, self.trained)


Report = TypeVar("Report", bound=FrozenModel)


class EvaluateStage(Stage[EvaluateInputs, Report]):
    """Leaves the report on what a line trains, in the run's folder."""

    name = "evaluate"
    reads = EvaluateInputs
    rehearsal = "Evaluating two batches"

    def task_run(self, context: Context, inputs: EvaluateInputs) -> str:
        """Return how many test images there are."""
        return f"Evaluate on {inputs.data.counts['test']:,} test images"

    def folder(self, context: Context, inputs: EvaluateInputs, result: Report | None) -> Path:
        """Return the folder of the report."""
        return inputs.run.folder / FOLDER


class Evaluate(EvaluateStage[Evaluated]):
    """Leaves the report, whose metrics are those of images not used for training or selection."""

    task = "Evaluate on the test images"
    output = Evaluated
    worker = EVALUATION
    code = (*EVALUATION.code, "patchline.pipeline.evaluation.evaluating")

    def title(self, context: Context, inputs: EvaluateInputs) -> str:
        """Return how many images are predicted, and about how long that takes."""
        data, trained = inputs.data, inputs.trained
        images = predicted_images(data, trained)
        held_out = " with validation"
        if corrupted := corrupted_images(context.config, data):
            held_out += f", {corrupted:,} of corrupted ones"
        mirrored = evaluating.mirrored_images(context.config, data, trained)
        if mirrored:
            held_out += f", at most {mirrored:,} mirrored"
        if trained.probe is not None:
            return f"Evaluating on the test images ({images:,} images{held_out})"
        seconds = evaluation_seconds(context.config, data, trained, mirrored)
        cost = f"{images:,} images{held_out}, about {max(1, round(seconds)):,} s"
        return f"Evaluating on the test images ({cost})"

    def key(self, context: Context, inputs: EvaluateInputs) -> Ingredients:
        """Return everything that determines the report."""
        determined = evaluating.ingredients(inputs.of(context.config))
        return {**determined, "code": stage_keys.code(*self.code)}

    def compute(self, context: Context, inputs: EvaluateInputs) -> Evaluated:
        """Predict in a worker process, and write the report."""
        folder = inputs.run.folder / FOLDER
        return evaluating.evaluate_run(inputs.of(context.config), folder, context.reporting.event)

    def after(self, context: Context, inputs: EvaluateInputs, result: Evaluated) -> None:
        """Warn where the metrics are to be read with care."""
        if result.report.warning:
            context.reporting.note(result.report.warning)

    def tags(self, context: Context, inputs: EvaluateInputs, result: Evaluated) -> dict[str, str]:
        """Return a digest of the test images, by which promotions compare."""
        return {TEST_IMAGES_TAG: result.report.images_fingerprint}

    def log(
        self, context: Context, inputs: EvaluateInputs, result: Evaluated, run: TrackedRun
    ) -> None:
        """Log the metrics, linked to the model and the data, and the files of the report."""
        model_id = registration.logged_model(run, str(context.config.name))
        registration.log_report_metrics(
            run, model_id, result.report.with_robustness, inputs.data.name
        )
        if result.report.answers is not None:
            registration.log_answer_metrics(run, model_id, result.report, inputs.data.name)
        pages = result.folder / EXPLANATIONS
        for kind, folder in ((FOLDER, result.folder), (f"{FOLDER}/{EXPLANATIONS}", pages)):
            for file in sorted(folder.glob("*.*")):
                if file.name not in (REFERENCE_FILE, REFERENCE_IMAGES_FILE):  # the package has them
                    tracked_run.log_file(run, file, kind)


EVALUATE = Evaluate()


class EncoderTest(EvaluateStage[PretrainingEvaluated]):
    """Leaves the report, with the loss of the test images under the run's objective."""

    task = "Test the encoder"
    output = PretrainingEvaluated
    worker = encoder_evaluating.TESTING
    code = (*worker.code, "patchline.pipeline.training.pretraining.evaluating")

    def title(self, context: Context, inputs: EvaluateInputs) -> str:
        """Return how many images are used."""
        return f"Testing the encoder ({inputs.data.counts['test']:,} images)"

    def key(self, context: Context, inputs: EvaluateInputs) -> Ingredients:
        """Return everything that determines the report."""
        determined = encoder_evaluating.ingredients(inputs.of(context.config))
        return {**determined, "code": stage_keys.code(*self.code)}

    def compute(self, context: Context, inputs: EvaluateInputs) -> PretrainingEvaluated:
        """Compute the loss in a worker process, and write the report."""
        folder = inputs.run.folder / FOLDER
        run = inputs.of(context.config)
        return encoder_evaluating.evaluate_encoder(run, folder, context.reporting.event)

    def log(
        self,
        context: Context,
        inputs: EvaluateInputs,
        result: PretrainingEvaluated,
        run: TrackedRun,
    ) -> None:
        """Log the loss, linked to the model and the data, and the files of the report."""
        model_id = registration.logged_model(run, str(context.config.name), "image-encoder")
        registration.log_report_metrics(run, model_id, result.report, inputs.data.name)
        for file in sorted(result.folder.iterdir()):
            tracked_run.log_file(run, file, FOLDER)


TEST_ENCODER = EncoderTest()
