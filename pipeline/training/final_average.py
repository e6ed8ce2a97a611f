"""What happens after the last step if the weights of the last validations are averaged.

The average replaces the best weights as the result. It is saved before the single files are
deleted, so a training that is killed in between comes to the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.models.model_description import DESCRIPTION_FILE
from pipeline.models.model_files import load_model, save_model
from pipeline.training.initial_model import description_of
from pipeline.training.job_provenance import provenance_of_job
from pipeline.training.train_result import AverageRecord, TrainResult
from pipeline.training.weight_averaging import measure_batch_norm

if TYPE_CHECKING:
    from pipeline.training.loop import Training

FOLDER = "averaged"


def with_average(training: Training, result: TrainResult) -> TrainResult:
    """Return the result with the average of the last weights, if the config asks for it."""
    count, state = training.last_weights.count, training.state
    if count is None:
        return result
    own = [record.step for record in state.history if record.step > training.first_step]
    steps = own[-count:]
    folder = training.job.folder / FOLDER
    save_average(training, steps, folder)
    images = state.history[-1].validation_images  # all, or as many as a time limit allows
    found = training.validator.metrics(state.average.model, images, images)
    record = AverageRecord(
        validations=len(steps),
        accuracy=found["validation_accuracy"],
        loss=found["validation_loss"],
    )
    values = {"averaged/accuracy": record.accuracy, "averaged/loss": record.loss}
    training.events.write("metrics", step=state.step, values=values)
    return result.model_copy(
        update={
            "best": folder,
            "best_step": state.step,
            "best_validation_accuracy": record.accuracy,
            "averaged": record,
        }
    )


def save_average(training: Training, steps: Sequence[int], folder: Path) -> None:
    """Save the average over the validations after some steps, unless it is there already.

    The training's own average model then has these weights.
    """
    model = training.state.average.model
    if (folder / DESCRIPTION_FILE).exists():  # the last file that is written
        model.load_state_dict(load_model(folder)[0].state_dict())
    else:
        training.last_weights.load_average(steps, model)
        measure_batch_norm(
            model,
            training.data.images,
            training.data.training.rows,
            training.job.image,
            training.config.training.batch_size,
            training.config.seed,
        )
        described, seen = description_of(training.job), provenance_of_job(training.job)
        save_model(folder, model, described, seen)
    training.last_weights.delete()
