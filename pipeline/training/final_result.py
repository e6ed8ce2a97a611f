"""The result of a training whose steps are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import RunError
from pipeline.training.train_result import EpochRecord, TrainResult

if TYPE_CHECKING:
    from pipeline.training.loop import Training


def result_of(training: Training) -> TrainResult:
    """Keep only the last checkpoint and the best weights, and return the result.

    Raises:
        RunError: if no step was done.
    """
    state = training.state
    if state.best is None:
        raise RunError(
            "No training step was completed, so there is no model. Increase training.time_limit, "
            "or training.epochs if there is no limit."
        )
    return TrainResult(
        best=training.checkpoints.finish(state.best.step),
        best_step=state.best.step,
        best_epoch=state.best.epoch,
        best_validation_accuracy=state.best.validation_accuracy,
        best_validation_loss=state.best.validation_loss,
        steps=state.step,
        epochs=state.step / training.order.steps_per_epoch,
        seconds=training.elapsed,
        images_per_second=state.sums.total_images / state.training_seconds,
        step_plan=tuple(state.plan.knots),
        precision=training.precision.name,
        precision_reason=training.precision.reason,
        compiled=training.compiled,
        device=training.device.type,
        threads=training.threads,
        parameters=training.parameters,
        stopped_because=_why_stopped(training, state.best),
        stopped_early=training.stops_early,
        validation_plan=tuple((each.step, each.validation_images) for each in state.history),
        rate_cuts=tuple(state.rate_cuts),
        halvings=tuple(state.halvings),
        thread_changes=tuple(state.thread_changes),
        history=tuple(state.history),
    )


def _why_stopped(training: Training, best: EpochRecord) -> str:
    settings = training.config.training
    if training.stops_early:
        times = f"{settings.early_stopping} validations"
        return f"no improvement in {times} since epoch {best.epoch:.4g}, which is the best"
    epochs = training.state.step / training.order.steps_per_epoch
    if settings.time_limit and settings.max_epochs and epochs >= settings.max_epochs:
        return f"maximum of {settings.max_epochs} epochs"
    if settings.time_limit:
        return f"time limit of {settings.time_limit}"
    return "all planned steps completed"
