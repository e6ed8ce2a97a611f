"""The training loop.

Randomness is counter-based: the order of the images and their augmentation depend on (seed, epoch),
dropout and stochastic depth on (seed, step). So a training that was killed goes on from its last
checkpoint to the same weights as if nothing had happened.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.data import manifest as manifests
from pipeline.data.loader import Batch, BatchOrder, TrainingImages, training_batches
from pipeline.data.prepared_store import open_images
from pipeline.errors import DamagedFileError, RunError
from pipeline.event_log import EventWriter
from pipeline.inference import normalised, predict_logits
from pipeline.model_building import build_model
from pipeline.model_description import ModelDescription, describe_plugins
from pipeline.model_files import WEIGHTS_FILE, save_model
from pipeline.sealed_files import verify
from pipeline.train_result import EpochRecord, TrainResult
from pipeline.training import best_weights
from pipeline.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from pipeline.training.config import duration_seconds
from pipeline.training.device import choose_precision, make_repeatable
from pipeline.training.ema import MovingAverage
from pipeline.training.job import TrainingJob
from pipeline.training.machine import choose_device, look
from pipeline.training.optimizer import build_optimizer
from pipeline.training.running_sums import RunningSums
from pipeline.training.schedule import learning_rate_factor
from pipeline.training.step_plan import StepPlan, TimePlanner

logger = logging.getLogger(__name__)

Labels = np.ndarray[Any, np.dtype[np.int64]]
_CHECKPOINT_SECONDS = 15.0
_CHECKPOINT_SHARE = 0.05
"""Of the time, at most, for writing checkpoints; those of a large model take long."""


class Training:
    """One training, from a job to a result."""

    def __init__(self, job: TrainingJob, events: EventWriter) -> None:
        self.job, self.events, self.config = job, events, job.config
        settings = job.config.training
        self.threads = make_repeatable(settings.threads)
        self.device = torch.device(choose_device(settings, look()))
        self._open_data()
        torch.manual_seed(job.config.seed)
        model = build_model(job.config.model, job.image, len(job.classes))
        self.model: nn.Module = model.to(self.device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.precision = choose_precision(settings, self.device, self.parameters)
        self.average = MovingAverage(self.model, settings.ema_decay)
        self.optimizer = build_optimizer(job.config.optimizer, self.model)
        self._plan_steps()
        self.step = 0
        self.training_seconds = 0.0
        self.seconds_before = 0.0  # of earlier attempts, when this one goes on
        self.history: list[EpochRecord] = []
        self.best: EpochRecord | None = None
        self.saved_best: tuple[int, ...] = ()  # steps of the best weights in both checkpoints
        self.sums = RunningSums()
        self.last_checkpoint = 0.0
        self.checkpoint_pause = _CHECKPOINT_SECONDS

    def run(self) -> TrainResult:
        """Train to the end of the plan and return where the best weights are."""
        self._resume()
        batches = self._batches()
        self.started = self.last_checkpoint = time.monotonic()
        while self.step < self.plan.last_step:
            began = time.monotonic()
            self._train_step(next(batches))
            self.training_seconds += time.monotonic() - began
            if self.planner:
                self.planner.after_step(self.step, self.training_seconds, self.elapsed)
            self._report_progress()
            if self.step % self.order.steps_per_epoch == 0 or self.step >= self.plan.last_step:
                self._validate()
            elif self._checkpoint_is_due:
                self._save_checkpoint()
        self._save_checkpoint()
        return self._result()

    @property
    def elapsed(self) -> float:
        """Seconds since the first step, earlier attempts included."""
        return self.seconds_before + time.monotonic() - self.started

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

    def _plan_steps(self) -> None:
        settings, per_epoch = self.config.training, self.order.steps_per_epoch
        self.planner: TimePlanner | None = None
        if settings.step_plan is not None:
            self.plan = StepPlan(settings.step_plan)
        elif settings.time_limit is None:
            self.plan = StepPlan.of_steps(settings.epochs * per_epoch)
        else:
            self.plan = TimePlanner.opening_plan()
            validation_steps = len(self.validation_rows) / (3 * settings.batch_size)
            limit = duration_seconds(settings.time_limit)
            self.planner = TimePlanner(self.plan, limit, per_epoch, validation_steps)

    def _batches(self) -> Iterator[Batch]:
        self.order.first_step = self.step
        return training_batches(self.order, self.training_images, self.config.data.workers)

    def _resume(self) -> None:
        why = ""
        for file in (self.checkpoint_file, self.previous_checkpoint):
            if file.exists():
                try:
                    self._resume_from(file)
                except DamagedFileError as error:
                    logger.warning("%s", error)
                    why += f" ({file.name} or its best weights are damaged)"
                    file.unlink()  # so that it does not take the place of a good one
                else:
                    self.events.write("warning", message=f"going on from step {self.step}{why}")
                    return
        if why:
            best_weights.keep_only(self.job.folder)
            self.events.write("warning", message=f"starting from the beginning{why}")

    def _check_best(self, state: Progress) -> None:
        if state["best"]:
            step = state["best"]["step"]
            best_weights.take_back(self.job.folder, step)
            verify(best_weights.folder_of(self.job.folder, step) / WEIGHTS_FILE)

    def _resume_from(self, file: Path) -> None:
        state = load_checkpoint(
            file, self.model, self.average.model, self.optimizer, self._check_best
        )
        self.step = state["step"]
        self.training_seconds = state["training_seconds"]
        self.seconds_before = state["elapsed"]
        self.plan.knots = StepPlan(state["plan"]).knots
        self.history = [EpochRecord.model_validate(record) for record in state["history"]]
        self.best = EpochRecord.model_validate(state["best"]) if state["best"] else None
        self.saved_best = (self.best.step,) if self.best else ()
        self.sums = RunningSums(**state["sums"])

    # -- one step ------------------------------------------------------------------------------

    def _train_step(self, batch: Batch) -> None:
        config = self.config
        began = time.monotonic()
        images, labels_B = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        torch.manual_seed(_step_seed(config.seed, self.step))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits_BK = self.model(normalised(images, self.job.image))
        loss = functional.cross_entropy(
            logits_BK.float(), labels_B, label_smoothing=config.training.label_smoothing
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        if config.optimizer.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.optimizer.gradient_clip)
        self._set_learning_rate(began)
        self.optimizer.step()
        self.step += 1
        self.average.update(self.model, self.step)
        correct = int((logits_BK.detach().argmax(1) == labels_B).sum())
        self.sums.add(float(loss.detach()), correct, len(labels_B))
        if not np.isfinite(self.sums.loss):
            raise RunError(
                f"The loss became {float(loss.detach())} at step {self.step}, so the training was "
                "stopped. Lower optimizer.learning_rate, or set training.precision to float32."
            )

    def _set_learning_rate(self, began: float) -> None:
        if self.planner and not self.plan.is_known:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.planner.before_first_update(time.monotonic() - began)
        settings = self.config.optimizer
        progress = self.plan.progress_of(self.step)
        self.learning_rate = settings.learning_rate * learning_rate_factor(
            progress, settings.warmup_fraction
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _report_progress(self) -> None:
        if self.planner and not self.planner.has_measured:
            return
        per_epoch = self.order.steps_per_epoch
        epochs = -(-self.plan.last_step // per_epoch)
        self.events.progress(
            self.step,
            self.plan.last_step,
            "step",
            epoch=min(epochs, (self.step - 1) // per_epoch + 1),
            epochs=epochs,
            loss=round(self.sums.mean_loss, 4),
            accuracy=round(self.sums.accuracy, 4),
            images_per_second=round(self.sums.total_images / max(self.training_seconds, 1e-9), 1),
        )

    # -- validation and checkpoints ------------------------------------------------------------

    def _validate(self) -> None:
        began = time.monotonic()
        logits_NK = predict_logits(
            self.average.model,
            self.images,
            self.validation_rows,
            self.job.image,
            device=self.device,
        )
        labels_N = torch.from_numpy(self.labels[self.validation_rows])
        record = EpochRecord(
            epoch=self.step / self.order.steps_per_epoch,
            step=self.step,
            train_loss=self.sums.mean_loss,
            train_accuracy=self.sums.accuracy,
            validation_loss=float(functional.cross_entropy(logits_NK, labels_N)),
            validation_accuracy=float((logits_NK.argmax(1) == labels_N).float().mean()),
            learning_rate=self.learning_rate,
            images_per_second=self.sums.total_images / self.training_seconds,
        )
        self.history.append(record)
        self.sums.next_epoch()
        if self.best is None or _better(record, self.best):
            self.best = record
            folder = best_weights.folder_of(self.job.folder, record.step)
            save_model(folder, self.average.model, self._description())
            best_weights.keep_only(self.job.folder, record.step, *self.saved_best)
        self.events.write("metrics", step=self.step, values=_metric_values(record))
        if self._checkpoint_is_due or not self.checkpoint_file.exists():
            self._save_checkpoint()
        if self.planner:
            self.planner.validation_seconds = time.monotonic() - began

    @property
    def checkpoint_file(self) -> Path:
        """Where the last whole state is kept."""
        return self.job.folder / "last.safetensors"

    @property
    def previous_checkpoint(self) -> Path:
        """Where the state before that is kept while it trains, should the last one be damaged."""
        return self.job.folder / "previous.safetensors"

    @property
    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self.last_checkpoint > self.checkpoint_pause

    def _save_checkpoint(self) -> None:
        began = time.monotonic()
        state: dict[str, Any] = {
            "step": self.step,
            "training_seconds": self.training_seconds,
            "elapsed": self.elapsed,
            "plan": self.plan.knots,
            "history": [record.model_dump() for record in self.history],
            "best": self.best.model_dump() if self.best else None,
            "sums": vars(self.sums),
        }
        if self.checkpoint_file.exists():
            self.checkpoint_file.replace(self.previous_checkpoint)
        save_checkpoint(self.checkpoint_file, self.model, self.average.model, self.optimizer, state)
        self.last_checkpoint = time.monotonic()
        cost = (self.last_checkpoint - began) / _CHECKPOINT_SHARE
        self.checkpoint_pause = max(_CHECKPOINT_SECONDS, cost)
        if self.best is not None:
            self.saved_best = (*self.saved_best[-1:], self.best.step)
            best_weights.keep_only(self.job.folder, *self.saved_best)

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
        if self.best is None:
            raise RunError("The training did no step, so there is no model. Raise training.epochs.")
        limited = self.config.training.time_limit
        self.previous_checkpoint.unlink(missing_ok=True)
        best_weights.keep_only(self.job.folder, self.best.step)
        return TrainResult(
            best=best_weights.finish(self.job.folder, self.best.step),
            best_step=self.best.step,
            best_validation_accuracy=self.best.validation_accuracy,
            steps=self.step,
            epochs=self.step / self.order.steps_per_epoch,
            seconds=self.elapsed,
            images_per_second=self.sums.total_images / self.training_seconds,
            step_plan=tuple(self.plan.knots),
            precision=self.precision,
            device=self.device.type,
            threads=self.threads,
            parameters=self.parameters,
            stopped_because=f"time limit of {limited}" if limited else "all planned steps done",
            history=tuple(self.history),
        )


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


def _better(new: EpochRecord, old: EpochRecord) -> bool:
    """Compare by accuracy; at the same accuracy by the loss, which says more on few images."""
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
    """Return up to `limit` rows, one of each class first."""
    by_class = [rows[labels[rows] == label] for label in np.unique(labels[rows])]
    rounds = itertools.zip_longest(*(list(group[:limit]) for group in by_class))
    ordered = [row for one_round in rounds for row in one_round if row is not None]
    return np.array(ordered[:limit])
