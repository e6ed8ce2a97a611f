"""The training loop.

Randomness is counter-based: the order of the images and their augmentation depend on (seed, epoch),
dropout and stochastic depth on (seed, step). So training that was killed and resumes from its last
checkpoint reaches the same weights as without the interruption.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.data import manifest as manifests
from pipeline.data.loader import Batch, BatchOrder, TrainingImages, training_batches
from pipeline.data.prepared_store import open_images
from pipeline.errors import RunError
from pipeline.models.inference import normalised, predict_logits
from pipeline.models.model_building import build_model
from pipeline.models.model_description import ModelDescription, describe_plugins
from pipeline.models.model_files import save_model
from pipeline.training import best_weights
from pipeline.training.checkpoint import Checkpoints
from pipeline.training.config import duration_seconds
from pipeline.training.device import choose_precision, make_repeatable
from pipeline.training.ema import MovingAverage
from pipeline.training.initial_images import initialise_from_images
from pipeline.training.job import TrainingJob
from pipeline.training.machine import choose_device, look
from pipeline.training.optimizer import build_optimizer
from pipeline.training.schedule import learning_rate_factor
from pipeline.training.step_plan import StepPlan, TimePlanner
from pipeline.training.train_result import EpochRecord, TrainResult
from pipeline.training.train_state import TrainState
from pipeline.workers.event_log import EventWriter

Labels = np.ndarray[Any, np.dtype[np.int64]]


class Training:
    """One training run, from a job to a result."""

    def __init__(self, job: TrainingJob, events: EventWriter) -> None:
        self.job, self.events, self.config = job, events, job.config
        settings = job.config.training
        self.threads = make_repeatable(settings.threads)
        self.device = torch.device(choose_device(settings, look()))
        self._open_data()
        torch.manual_seed(job.config.seed)
        model = build_model(job.config.model, job.image, len(job.classes))
        rows = self.training_images.rows
        initialise_from_images(model, self.images, rows, job.image, job.config.seed)
        model = model.to(self.device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.precision = choose_precision(settings, self.device, self.parameters)
        self.planner, plan = self._planned_steps()
        self.state = TrainState(
            model=model,
            average=MovingAverage(model, settings.ema_decay),
            optimizer=build_optimizer(job.config.optimizer, model),
            plan=plan,
        )
        self.checkpoints = Checkpoints(job.folder)

    def run(self) -> TrainResult:
        """Train to the end of the plan and return the result."""
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
        return self._result()

    @property
    def elapsed(self) -> float:
        """Seconds since the first step, including earlier attempts."""
        return self._seconds_before + time.monotonic() - self._started

    # -- set-up --------------------------------------------------------------------------------

    def _open_data(self) -> None:
        rows = manifests.usable(manifests.load(self.job.manifest_file))
        index = {label: number for number, label in enumerate(self.job.classes)}
        self.labels: Labels = rows["label"].map(index).to_numpy().astype(np.int64)
        self.images = open_images(self.job.store)
        self.validation_rows = np.flatnonzero(rows["split"] == "validation")
        config = self.config
        self.training_images = TrainingImages(
            store=self.job.store,
            rows=np.flatnonzero(rows["split"] == "train"),
            labels=self.labels,
            augmentation=config.augmentation,
            image=self.job.image,
            seed=config.seed,
        )
        self.order = BatchOrder(
            self.training_images.rows, config.training.batch_size, config.seed, first_step=0
        )

    def _planned_steps(self) -> tuple[TimePlanner | None, StepPlan]:
        settings, per_epoch = self.config.training, self.order.steps_per_epoch
        if settings.step_plan is not None:
            return None, StepPlan(settings.step_plan)
        if settings.time_limit is None:
            return None, StepPlan.of_steps(settings.epochs * per_epoch)
        plan = TimePlanner.opening_plan()
        validation_steps = len(self.validation_rows) / (3 * settings.batch_size)
        limit = duration_seconds(settings.time_limit)
        return TimePlanner(plan, limit, per_epoch, validation_steps), plan

    def _batches(self) -> Iterator[Batch]:
        self.order.first_step = self.state.step
        return training_batches(self.order, self.training_images, self.config.data.workers)

    # -- one step ------------------------------------------------------------------------------

    def _train_step(self, batch: Batch) -> None:
        config, state = self.config, self.state
        began = time.monotonic()
        images, labels_B = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        torch.manual_seed(_step_seed(config.seed, state.step))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits_BK = state.model(normalised(images, self.job.image))
        loss = functional.cross_entropy(
            logits_BK.float(), labels_B, label_smoothing=config.training.label_smoothing
        )
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        if config.optimizer.gradient_clip is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), config.optimizer.gradient_clip)
        self._set_learning_rate(began)
        state.optimizer.step()
        state.step += 1
        state.average.update(state.model, state.step)
        correct = int((logits_BK.detach().argmax(1) == labels_B).sum())
        state.sums.add(float(loss.detach()), correct, len(labels_B))
        if not np.isfinite(state.sums.loss):
            raise RunError(
                f"The loss became {float(loss.detach())} at step {state.step}, so training was "
                "stopped. Lower optimizer.learning_rate, or set training.precision to float32."
            )

    def _set_learning_rate(self, began: float) -> None:
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
        for group in state.optimizer.param_groups:
            group["lr"] = self.learning_rate

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
            self.images,
            self.validation_rows,
            self.job.image,
            device=self.device,
        )
        labels_N = torch.from_numpy(self.labels[self.validation_rows])
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
        if state.best is None or _better(record, state.best):
            state.best = record
            folder = best_weights.folder_of(self.job.folder, record.step)
            save_model(folder, state.average.model, self._description())
            self.checkpoints.keep_best(record.step)
        self.events.write("metrics", step=state.step, values=_metric_values(record))
        if self.checkpoints.is_due or not self.checkpoints.exist:
            self._write_checkpoint()
        if self.planner:
            self.planner.validation_seconds = time.monotonic() - began

    def _write_checkpoint(self) -> None:
        self.state.elapsed_seconds = self.elapsed
        self.checkpoints.write(self.state)

    def _description(self) -> ModelDescription:
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


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


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


def preview_rows(labels: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], limit: int = 8) -> Any:
    """Return up to `limit` rows, starting with one of each class."""
    by_class = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    rounds = itertools.zip_longest(*(list(group[:limit]) for group in by_class))
    ordered = [row for one_round in rounds for row in one_round if row is not None]
    return np.array(ordered[:limit])
