"""How long the evaluation of a run takes, estimated from the speed of its training."""

from __future__ import annotations

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.evaluation.robustness import VERSIONS
from patchline.pipeline.models.time_after_training import (
    estimate_evaluation,
    predicting_rate,
    slowdown,
)
from patchline.pipeline.training.config import FULL_SIZE_FROM
from patchline.pipeline.training.train_result import TrainResult

_USUAL_DEPTH = 12


def estimate_predicting_seconds(config: RunConfig, images: int, images_per_second: float) -> float:
    """Return about how long predicting takes, from the speed of training in float32."""
    return images / max(1e-9, predicting_rate(config, images_per_second, "float32"))


def evaluation_seconds(config: RunConfig, data: IngestedData, trained: TrainResult) -> float:
    """Return about how long an evaluation takes.

    Args:
        config: the run's settings.
        data: the run's data.
        trained: the result of the run's training.
    """
    rate, training = trained.images_per_second, config.training
    if training.initial_image_scale < 1:  # most images were smaller
        small = FULL_SIZE_FROM * (1 - training.initial_image_scale**2)
        rate *= 1 - small
    tuned = trained.fine_tuning
    if tuned and tuned.blocks is not None:  # images pass through the others, too
        rate *= max(1, tuned.blocks) / (config.model.settings.get("depth") or _USUAL_DEPTH)
    images = count_predicted_images(data, trained) + count_corrupted_images(config, data)
    return estimate_evaluation(
        images,
        predicting_rate(config, rate, trained.precision),
        trained.parameters,
        slowdown(),
        explains=config.evaluation.explanations,
    )


def count_corrupted_images(config: RunConfig, data: IngestedData) -> int:
    """Return how many corrupted versions of test images, and these themselves, are predicted."""
    return min(config.evaluation.corruptions, data.counts["test"]) * (VERSIONS + 1)


def count_predicted_images(data: IngestedData, trained: TrainResult) -> int:
    """Return how many images the evaluation predicts, counted once for each model that does."""
    counts = data.counts
    held_out = counts["validation"]
    if trained.folds is not None:  # each image by the fold that was not trained on it
        held_out += counts["train"]
    return held_out + counts["test"] * (trained.ensemble.models if trained.ensemble else 1)
