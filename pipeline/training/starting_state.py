"""Start a training from the final state of a finished one, as if it had been planned longer."""

from __future__ import annotations

import shutil

from pipeline.training import best_weights
from pipeline.training.checkpoint import LAST, load
from pipeline.training.job import ExtendedTraining, TrainingJob
from pipeline.training.step_plan import StepPlan
from pipeline.training.train_state import TrainState
from pipeline.workers.event_log import EventWriter


def take_over(job: TrainingJob, extended: ExtendedTraining, state: TrainState) -> None:
    """Restore weights, moments and history of the finished training, with the new plan.

    Images that are full-sized already stay so, if training began with smaller ones.

    Args:
        job: of the new training.
        extended: the finished one.
        state: just built, with the plan of the whole length; it is overwritten.

    Raises:
        DamagedFileError: if the final checkpoint or the best weights are damaged.
    """
    settings, end = job.config.training, state.plan.last_step
    load(extended.folder / LAST, state)
    progress = state.step / end
    if settings.initial_image_scale < 1.0:
        progress = max(progress, settings.full_size_from)
    state.plan.knots = StepPlan([(0, 0.0, state.step), (state.step, progress, end)]).knots
    if state.best is not None:
        copied = best_weights.folder_of(job.folder, state.best.step)
        shutil.copytree(extended.folder / best_weights.FINAL, copied, dirs_exist_ok=True)


def log_history(state: TrainState, events: EventWriter) -> None:
    """Report the validations of the finished training, so that the run's curves are whole."""
    for record in state.history:
        events.write("metrics", step=record.step, values=record.metric_values())
