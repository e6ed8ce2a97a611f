"""Evaluate a classifier or an encoder on the test images, and write the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.evaluation import evaluating
from patchline.pipeline.evaluation.answers_report import REFERENCE_FILE
from patchline.pipeline.evaluation.cost import (
    count_corrupted_images,
    count_predicted_images,
    evaluation_seconds,
)
from patchline.pipeline.evaluation.evaluating import FOLDER, Evaluated
from patchline.pipeline.evaluation.galleries import EXPLANATIONS
from patchline.pipeline.evaluation.prediction_job import EVALUATION
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE
from patchline.pipeline.registry import registration
from patchline.pipeline.registry.registered_models import TEST_IMAGES_TAG
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.pretraining import evaluating as encoder_evaluating
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

Report = TypeVar("Report", bound=FrozenModel)


@dataclass(frozen=True)
class EvaluateStage(Stage[Report]):
    """Leaves the report on what a line trains, in the run's folder."""

    name = "evaluate"
    rehearsal = "Evaluating two batches"

    trained: TrainResult
    data: IngestedData
    prepared: PreparedData
    run: TrackedRun

    @property
    def trained_run(self) -> TrainedRun:
        """What the run has trained, with its data and settings."""
        return TrainedRun(self.config, self.data, self.prepared, self.trained)

    def task_run(self) -> str:
        """Return how many test images there are."""
        return f"Evaluate on {self.data.counts['test']:,} test images"

    def folder(self, result: Report | None) -> Path:
        """Return the folder of the report."""
        return self.run.folder / FOLDER


class Evaluate(EvaluateStage[Evaluated]):
    """Leaves the report, whose metrics are those of images not used for training or selection."""

    task = "Evaluate on the test images"
    output = Evaluated
    worker = EVALUATION
    code = (*EVALUATION.code, "patchline.pipeline.evaluation.evaluating")

    def title(self) -> str:
        """Return how many images are predicted, and about how long that takes."""
        data, trained = self.data, self.trained
        images = count_predicted_images(data, trained)
        held_out = " with validation"
        if corrupted := count_corrupted_images(self.config, data):
            held_out += f", {corrupted:,} of corrupted ones"
        if trained.probe is not None:
            return f"Evaluating on the test images ({images:,} images{held_out})"
        seconds = evaluation_seconds(self.config, data, trained)
        cost = f"{images:,} images{held_out}, about {max(1, round(seconds)):,} s"
        return f"Evaluating on the test images ({cost})"

    def key(self) -> Ingredients:
        """Return everything that determines the report."""
        determined = evaluating.ingredients(self.trained_run)
        return {**determined, "code": stage_keys.code(*self.code)}

    def compute(self) -> Evaluated:
        """Predict in a worker process, and write the report."""
        return evaluating.evaluate_run(
            self.trained_run, self.folder(None), self.context.reporting.event
        )

    def after(self, result: Evaluated) -> None:
        """Warn where the metrics are to be read with care."""
        if result.report.warning:
            self.context.reporting.note(result.report.warning)

    def tags(self, result: Evaluated) -> dict[str, str]:
        """Return a digest of the test images, by which promotions compare."""
        return {TEST_IMAGES_TAG: result.report.images_fingerprint}

    def log(self, result: Evaluated, run: TrackedRun) -> None:
        """Log the metrics, linked to the model and the data, and the files of the report."""
        model_id = registration.find_logged_model(run, str(self.config.name))
        registration.log_report_metrics(
            run, model_id, result.report.with_robustness, self.data.name
        )
        if result.report.answers is not None:
            registration.log_answer_metrics(run, model_id, result.report, self.data.name)
        pages = result.folder / EXPLANATIONS
        for kind, folder in ((FOLDER, result.folder), (f"{FOLDER}/{EXPLANATIONS}", pages)):
            for file in sorted(folder.glob("*.*")):
                if file.name not in (REFERENCE_FILE, REFERENCE_IMAGES_FILE):  # the package has them
                    tracked_run.log_file(run, file, kind)


class EncoderTest(EvaluateStage[PretrainingEvaluated]):
    """Leaves the report, with the loss of the test images under the run's objective."""

    task = "Test the encoder"
    output = PretrainingEvaluated
    worker = encoder_evaluating.TESTING
    code = (*worker.code, "patchline.pipeline.training.pretraining.evaluating")

    def title(self) -> str:
        """Return how many images are used."""
        return f"Testing the encoder ({self.data.counts['test']:,} images)"

    def key(self) -> Ingredients:
        """Return everything that determines the report."""
        determined = encoder_evaluating.ingredients(self.trained_run)
        return {**determined, "code": stage_keys.code(*self.code)}

    def compute(self) -> PretrainingEvaluated:
        """Compute the loss in a worker process, and write the report."""
        return encoder_evaluating.evaluate_encoder(
            self.trained_run, self.folder(None), self.context.reporting.event
        )

    def log(self, result: PretrainingEvaluated, run: TrackedRun) -> None:
        """Log the loss, linked to the model and the data, and the files of the report."""
        model_id = registration.find_logged_model(run, str(self.config.name), "image-encoder")
        registration.log_report_metrics(run, model_id, result.report, self.data.name)
        for file in sorted(result.folder.iterdir()):
            tracked_run.log_file(run, file, FOLDER)
