"""Test an encoder that was trained without labels, and write the report."""

from __future__ import annotations

from patchline.pipeline.evaluation.evaluating import FOLDER
from patchline.pipeline.registry import registration
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.evaluate import EvaluateInputs, EvaluateStage
from patchline.pipeline.training.pretraining import evaluating as encoder_evaluating
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.workers.prewarm import Worker
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


class EncoderTest(EvaluateStage[PretrainingEvaluated]):
    """Leaves the report, with the loss of the test images under the run's objective."""

    task = "Test the encoder"
    output = PretrainingEvaluated
    worker = Worker(encoder_evaluating.MODULE)
    code = (
        f"{encoder_evaluating.MODULE}.__main__",
        "patchline.pipeline.training.pretraining.evaluating",
        "patchline.pipeline.models.layers",
    )

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
