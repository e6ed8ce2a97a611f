"""The training loop.

Randomness is counter-based: the order of the images and their augmentation depend on (seed, epoch),
dropout and stochastic depth on (seed, step). So training that was killed and resumes from its last
checkpoint reaches the same weights as without the interruption.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.nn import functional

from pipeline.data.loader import Batch, BatchOrder, training_batches
from pipeline.errors import RunError
from pipeline.models.inference import predict_logits
from pipeline.models.model_building import build_model
from pipeline.models.model_description import ModelDescription, describe_plugins
from pipeline.models.model_files import save_model
from pipeline.training import best_weights
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.config import duration_seconds
from pipeline.training.device import choose_precision, make_repeatable
from pipeline.training.ema import MovingAverage
from pipeline.training.final_average import with_average
from pipeline.training.initial_images import initialise_from_images
from pipeline.training.job import TrainingJob
from pipeline.training.machine import choose_device, look
from pipeline.training.optimizer import build_optimizer
from pipeline.training.schedule import learning_rate_factor
from pipeline.training.step_plan import StepPlan, TimePlanner
from pipeline.training.train_result import EpochRecord, TrainResult
from pipeline.training.train_state import TrainState
from pipeline.training.train_step import TrainStep
from pipeline.training.training_data import open_data
from pipeline.training.weight_averaging import LastWeights
from pipeline.workers.event_log import EventWriter


class Training:
    """One training run, from a job to a result."""

    def __init__(self, job: TrainingJob, events: EventWriter) -> None:
        self.job, self.events, self.config = job, events, job.config
        settings = job.config.training
        self.threads = make_repeatable(settings.threads)
        self.device = torch.device(choose_device(settings, look()))
        self.data = open_data(job)
        rows = self.data.training.rows
        batch_size = settings.batch_size
        self.order = BatchOrder(rows, batch_size, job.config.seed, first_step=0)
        torch.manual_seed(job.config.seed)
        model = build_model(job.config.model, job.image, len(job.classes))
        initialise_from_images(model, self.data.images, rows, job.image, job.config.seed)
        model = model.to(self.device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.precision = choose_precision(settings, self.device, self.parameters)
        self.step = TrainStep(job.config, job.image, self.device, self.precision)
        self.planner, plan = self._planned_steps()
        self.state = TrainState(
            model=model,
            average=MovingAverage(model, settings.ema_decay),
            optimizer=build_optimizer(job.config.optimizer, model),
            plan=plan,
        )
        self.checkpoints = Checkpoints(job.folder)
        self.last_weights = LastWeights(job.folder, settings.average_last)

    def run(self) -> TrainResult:
        """Train to the end of the plan and return the result."""
        self.train_to_the_end()
        return with_average(self, self._result())

    def train_to_the_end(self) -> None:
        """Do all steps of the plan that are left, and write the last checkpoint."""
        state = self.state
        if resumed := self.checkpoints.resume(state):
            self.events.write("warning", message=resumed)
        self._seconds_before = state.elapsed_seconds
        batches = self._batches()
        self._started = time.monotonic()
        self.checkpoints.start_clock()
        while state.step < state.plan.last_step:
            began = time.monotonic()
            self._train_step(next(batches))
            state.training_seconds += time.monotonic() - began
            if self.planner:
                self.planner.after_step(state.step, state.training_seconds, self.elapsed)
            self._report_progress()
            if state.step % self.order.steps_per_epoch == 0 or state.step >= state.plan.last_step:
                self._validate()
            elif self.checkpoints.is_due:
                self._write_checkpoint()
        self._write_checkpoint()

    @property
    def elapsed(self) -> float:
        """Seconds since the first step, including earlier attempts."""
        return self._seconds_before + time.monotonic() - self._started

    # -- set-up --------------------------------------------------------------------------------

    def _planned_steps(self) -> tuple[TimePlanner | None, StepPlan]:
        settings, per_epoch = self.config.training, self.order.steps_per_epoch
        if settings.step_plan is not None:
            return None, StepPlan(self.job.part.plan(settings.step_plan, per_epoch))
        if settings.time_limit is None:
            return None, StepPlan.of_steps(settings.epochs * per_epoch)
        plan = TimePlanner.opening_plan()
        validation_steps = len(self.data.validation_rows) / (3 * settings.batch_size)
        limit = duration_seconds(settings.time_limit)
        return TimePlanner(plan, limit, per_epoch, validation_steps), plan

    def _batches(self) -> Iterator[Batch]:
        self.order.first_step = self.state.step
        return training_batches(self.order, self.data.training, self.config.data.workers)

    # -- one step ------------------------------------------------------------------------------

    def _train_step(self, batch: Batch) -> None:
        began = time.monotonic()
        self.step.compute_gradients(self.state, batch)
        self.step.update_weights(self.state, self._next_learning_rate(began))

    def _next_learning_rate(self, began: float) -> float:
        state = self.state
        if self.planner and not state.plan.is_known:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.planner.before_first_update(time.monotonic() - began)
        settings = self.config.optimizer
        progress = state.plan.progress_of(state.step)
        self.learning_rate = settings.learning_rate * learning_rate_factor(
            progress, settings.warmup_fraction, settings.schedule, settings.decay_fraction
        )
        return self.learning_rate

    def _report_progress(self) -> None:
        state = self.state
        if self.planner and not self.planner.has_measured:
            return
        per_epoch = self.order.steps_per_epoch
        epochs = -(-state.plan.last_step // per_epoch)
        timed: dict[str, float | bool] = {}
        if self.planner:
            limit = self.planner.limit_seconds
            settled = self.planner.is_settled
            timed = {"seconds": self.elapsed, "limit_seconds": limit, "settled": settled}
        self.events.progress(
            state.step,
            state.plan.last_step,
            "step",
            epoch=min(epochs, (state.step - 1) // per_epoch + 1),
            epochs=epochs,
            loss=round(state.sums.mean_loss, 4),
            accuracy=round(state.sums.accuracy, 4),
            images_per_second=round(state.sums.total_images / max(state.training_seconds, 1e-9), 1),
            **timed,
        )

    # -- validation and checkpoints ------------------------------------------------------------

    def _validate(self) -> None:
        began, state = time.monotonic(), self.state
        logits_NK = predict_logits(
            state.average.model,
            self.data.images,
            self.data.validation_rows,
            self.job.image,
            device=self.device,
        )
        labels_N = torch.from_numpy(self.data.labels[self.data.validation_rows])
        record = EpochRecord(
            epoch=state.step / self.order.steps_per_epoch,
            step=state.step,
            train_loss=state.sums.mean_loss,
            train_accuracy=state.sums.accuracy,
            validation_loss=float(functional.cross_entropy(logits_NK, labels_N)),
            validation_accuracy=float((logits_NK.argmax(1) == labels_N).float().mean()),
            learning_rate=self.learning_rate,
            images_per_second=state.sums.total_images / state.training_seconds,
        )
        state.history.append(record)
        state.sums.next_epoch()
        self.last_weights.add(state.step, state.average.model)
        if state.best is None or _better(record, state.best):
            state.best = record
            folder = best_weights.folder_of(self.job.folder, record.step)
            save_model(folder, state.average.model, self.description())
            self.checkpoints.keep_best(record.step)
        self.events.write("metrics", step=state.step, values=_metric_values(record))
        if self.checkpoints.is_due or not self.checkpoints.exist:
            self._write_checkpoint()
        if self.planner:
            self.planner.validation_seconds = time.monotonic() - began

    def _write_checkpoint(self) -> None:
        self.state.elapsed_seconds = self.elapsed
        self.checkpoints.write(self.state)
        self.last_weights.checkpointed(self.state.step)

    def description(self) -> ModelDescription:
        """Return the description of this training's model."""
        return ModelDescription(
            model=self.config.model,
            plugins=describe_plugins(self.config.model),
            classes=self.job.classes,
            image=self.job.image,
            data_fingerprint=self.job.data_fingerprint,
            run_id=self.job.run_id,
        )

    def _result(self) -> TrainResult:
        state = self.state
        if state.best is None:
            raise RunError("No step was done, so there is no model. Increase training.epochs.")
        limited = self.config.training.time_limit
        return TrainResult(
            best=self.checkpoints.finish(state.best.step),
            best_step=state.best.step,
            best_validation_accuracy=state.best.validation_accuracy,
            steps=state.step,
            epochs=state.step / self.order.steps_per_epoch,
            seconds=self.elapsed,
            images_per_second=state.sums.total_images / state.training_seconds,
            step_plan=tuple(state.plan.knots),
            precision=self.precision,
            device=self.device.type,
            threads=self.threads,
            parameters=self.parameters,
            stopped_because=f"time limit of {limited}" if limited else "all planned steps done",
            history=tuple(state.history),
        )


def _better(new: EpochRecord, old: EpochRecord) -> bool:
    """Compare by accuracy, then by the loss, which is finer for few images."""
    return (new.validation_accuracy, -new.validation_loss) > (
        old.validation_accuracy,
        -old.validation_loss,
    )


def _metric_values(record: EpochRecord) -> dict[str, float]:
    return {
        "train/loss": record.train_loss,
        "train/accuracy": record.train_accuracy,
        "validation/loss": record.validation_loss,
        "validation/accuracy": record.validation_accuracy,
        "learning_rate": record.learning_rate,
        "images_per_second": record.images_per_second,
        "epoch": record.epoch,
    }
