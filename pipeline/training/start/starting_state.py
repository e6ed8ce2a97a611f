"""Start a training run from the final state of a finished one, as if it had been planned longer."""

from __future__ import annotations

import shutil

from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.checkpoints import best_weights
from patchline.pipeline.training.checkpoints.checkpoint import LAST, load
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob
from patchline.pipeline.training.length.step_plan import StepPlan
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.validation import Validator
from patchline.pipeline.workers.event_log import EventWriter

_GROUP_SETTINGS = ("weight_decay", "momentum", "nesterov", "rate_factor")
"""What a parameter group gets from the config; the rest is counted while training."""


def take_over(
    job: TrainingJob, extended: ExtendedTraining, state: TrainState, validator: Validator
) -> None:
    """Restore weights, moments and history of the finished training, with the new plan.

    The optimizer keeps the settings that it was built with, which may be new. Images that are
    full-sized already stay so, if training began with smaller ones.

    Args:
        job: of the new training.
        extended: the finished one.
        state: just built, with the plan of the whole length; it is overwritten.
        validator: measures the best weights again if that was done on a part of the split.

    Raises:
        DamagedFileError: if the final checkpoint or the best weights are damaged.
    """
    settings, end = job.config.training, state.plan.last_step
    chosen = [
        {key: group[key] for key in _GROUP_SETTINGS if key in group}
        for group in state.optimizer.param_groups
    ]
    load(extended.folder / LAST, state)
    for group, values in zip(state.optimizer.param_groups, chosen, strict=True):
        group.update(values)
    progress = state.step / end
    if settings.initial_image_scale < 1.0:
        progress = max(progress, settings.full_size_from)
    state.plan.knots = StepPlan([(0, 0.0, state.step), (state.step, progress, end)]).knots
    if state.best is not None:
        best = extended.folder / best_weights.FINAL
        if validator.ranks.is_first:
            copied = best_weights.folder_of(job.folder, state.best.step)
            shutil.copytree(best, copied, dirs_exist_ok=True)
        of_part = state.best.compared_loss is not None
        if job.classes and (of_part or state.best.validation_images < validator.images):
            model = load_model(best)[0].to(validator.device)
            metrics = validator.metrics(model, validator.images, validator.images)
            compared = dict.fromkeys(("compared_accuracy", "compared_map", "compared_loss"))
            state.best = state.best.model_copy(update={**metrics, **compared})


def log_history(state: TrainState, events: EventWriter) -> None:
    """Report the validations of the finished training, so that the run's curves are whole."""
    for record in state.history:
        events.write("metrics", step=record.step, values=record.metric_values())
