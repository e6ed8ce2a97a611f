"""The training loop: the one program that every rank of a training run runs.

With one process or several, each rank goes through the same steps with the same weights and decides
alike, by the clock of rank 0. Each trains and validates on its part of the images; rank 0 alone
writes events and files.

Randomness is counter-based: the order of the images and their augmentation depend on (seed, epoch),
dropout and stochastic depth on (seed, step) and the rank of the process. So training that was
killed and resumes from its last checkpoint reaches the same weights as without the interruption.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.errors import RunError
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.provenance import Provenance
from patchline.pipeline.training import checkpoint, faults
from patchline.pipeline.training.augmentation_preview import draw_preview
from patchline.pipeline.training.checkpoint import Checkpoints
from patchline.pipeline.training.device import make_repeatable, wait_for
from patchline.pipeline.training.faults import (
    Diverged,
    batch_files,
    save_batch,
)
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.out_of_memory import explain_out_of_memory
from patchline.pipeline.training.processes.ranks import Ranks, SharedClock
from patchline.pipeline.training.recipe.objectives import save_trained
from patchline.pipeline.training.recipe.optimizer import averages_itself
from patchline.pipeline.training.recipe.weight_averaging import (
    LastWeights,
    measure_batch_norm_often,
)
from patchline.pipeline.training.run_length import RunLength
from patchline.pipeline.training.speed.compilation import compile_model
from patchline.pipeline.training.speed.training_speed import ComputeShare, RecentRate
from patchline.pipeline.training.start import initial_step, take_over
from patchline.pipeline.training.train_result import (
    AverageRecord,
    EpochRecord,
    TrainResult,
    without_none,
)
from patchline.pipeline.training.trained_model import description_of, provenance_of_job
from patchline.pipeline.training.training_data import DividedOrder, open_data
from patchline.pipeline.training.validation import Validator
from patchline.pipeline.workers.event_log import EventWriter

_LONG_RUN_SECONDS = 20.0
"""A shorter training does not measure its share of the machine's matrix-product rate."""
_MOST_RESTARTS = 2
"""How often the learning rate is halved after a loss or gradient that is not finite."""
_AVERAGED = "averaged"
"""Folder of the average of the last weights."""


class Training:
    """One training run, from a job to a result."""

    def __init__(self, job: TrainingJob, events: EventWriter, ranks: Ranks | None = None) -> None:
        self.job, self.events, self.config = job, events, job.config
        self.ranks = ranks or Ranks()
        self.clock, settings = SharedClock(self.ranks), job.config.training
        device = self.ranks.own_device(choose_device(settings, detect_machine()))
        own_threads = make_repeatable(self.ranks.own_threads(settings.threads), device)
        self.threads = self.ranks.threads_of_machine(own_threads)
        self.data = open_data(job)
        order = self.data.order(job.config)
        mixing = bool(settings.mixup or settings.cutmix)
        self.own_order = DividedOrder(order, self.ranks.rank, self.ranks.size, mixing=mixing)
        images = len(self.data.validation_rows)
        self.length = RunLength.of(job.config, job.part, order.steps_per_epoch, images)
        self.step = initial_step(job, self.data, self.length.plan, device, self.ranks, events)
        self.state = self.step.state
        self.validator = Validator(
            self.data, self.step.objective, job.image, device, self.step.precision, self.ranks
        )
        self.checkpoints = Checkpoints(job.folder, writes=self.ranks.is_first, clock=self.clock)
        self.last_weights = LastWeights(job.folder, job.config.record.average_last)
        self._recent_rate = RecentRate()

    def run(self) -> TrainResult:
        """Train to the end of the plan and return the result.

        A part that ends at an epoch of the plan is continued later, so the last weights stay as
        they are, and the average is left to the end of the whole plan.

        Raises:
            RunError: if no step was done.
        """
        self.train_to_the_end()
        result = self._result()
        return result if self.job.part.is_continued else self._averaged(result)

    def train_to_the_end(self) -> None:
        """Do all steps of the plan that are left, and write the last checkpoint."""
        self._begin()
        with faults.dead_workers_named(), explain_out_of_memory():
            while not self.is_finished:
                try:
                    self._train()
                except Diverged as diverged:
                    self._restart(diverged)
        self._write_checkpoint()

    def _begin(self) -> None:
        """Draw the preview, and take the state of an earlier attempt, or of another training."""
        state = self.state
        if self.ranks.is_first and self.job.tokens is None:
            picture = draw_preview(self.job, self.data)
            self.events.write("artifact", path=str(picture), name=picture.name)
        if message := self.ranks.warning():
            self.events.write("warning", message=message)
        with self.ranks.first_before_others(self.job.folder):
            planned = state.plan.knots
            if resumed := self.checkpoints.resume(state):
                self.events.write("warning", message=resumed)
            if not self.length.planner:  # a checkpoint at the end of a shorter part has its plan
                state.plan.knots = planned
            self.last_weights.forget_after(state.step)
        if self.job.extends and state.step == 0:
            take_over(self.job, self.job.extends, state, self.validator)
            for record in state.history:
                self.events.write("metrics", step=record.step, values=record.metric_values())
            self.checkpoints.mark(state)
        self.step.retry.resume(self.step)
        self.compiled = compile_model(self.step, self.own_order, self.validator, self.events)
        self.clock.start(state.step, state.elapsed_seconds)
        self.checkpoints.start_clock()
        if timed := self.length.timed:
            spent = (state.validation_seconds, self.clock.elapsed, state.batch_norm_seconds)
            timed.restore(state.history, *spent)

    def _train(self) -> None:
        """Train until the end.

        Raises:
            Diverged: if the loss or the gradient of a step is not finite.
        """
        state, planner, batches = self.state, self.length.planner, self.batches()
        batches = itertools.chain([next(batches)], batches)  # starting workers is no training
        self.clock.restart(state.step)
        while not self.is_finished:
            part = self.own_order.at(state.step)
            gradients = self.step.compute_gradients(next(batches), part)
            if planner and not state.plan.is_known:
                wait_for(self.step.device)
                planner.before_first_update(self._count_training_time(self.clock.read()))
            self.learning_rate = self.step.update(gradients)
            if self.clock.is_due(state.step) or state.step >= state.plan.last_step:
                self._count_training_time(self.clock.read_after(state.step))
                if planner:
                    planner.after_step(state.step, state.training_seconds, self.clock.elapsed)
                self._report_progress()
            ends = state.step >= state.plan.last_step
            if ends or self.length.validations.is_due(state.step, self.clock.elapsed):
                self._validate(last=ends)
            elif self.checkpoints.is_due:
                self.step.finite.settle()
                self._write_checkpoint()

    @property
    def first_step(self) -> int:
        """Number of steps that an extended training had done."""
        return self.job.extends.steps if self.job.extends else 0

    @property
    def is_finished(self) -> bool:
        """Whether all planned steps are done, or early stopping ends the training."""
        return self.state.step >= self.state.plan.last_step or self.stops_early

    @property
    def stops_early(self) -> bool:
        """Whether there were enough validations without improvement."""
        patience, best = self.config.training.early_stopping, self.state.best
        if patience is None or best is None:
            return False
        since = max(best.step, self.first_step)
        return sum(record.step > since for record in self.state.history) >= patience

    def batches(self) -> Iterator[Batch]:
        """Yield what this rank loads of each batch, from the next step on."""
        self.own_order.order.first_step = self.state.step
        workers, plan = self.config.data.workers, self.state.plan
        if workers:
            faults.survive_kills()
        return self.data.batches(self.own_order, workers, self.step.device, lambda: plan.last_step)

    # -- progress ------------------------------------------------------------------------------

    def _count_training_time(self, seconds: float) -> float:
        """Count seconds that the ranks have trained since they last read the clock."""
        self.state.training_seconds += seconds
        self.state.sums.seconds += seconds
        if self.ranks.size > 1:  # later, rank 0 alone shows the sums
            self.state.sums.read()
        return seconds

    def _report_progress(self) -> None:
        state, planner = self.state, self.length.planner
        if planner and not planner.has_measured:
            return
        self.events.progress(
            state.step, state.plan.last_step, "step", details=self._progress_details
        )

    def _progress_details(self) -> dict[str, float | bool]:
        state, per_epoch = self.state, self.length.steps_per_epoch
        rate = self._recent_rate.add(state.training_seconds, state.sums.total_images)
        epochs = -(-state.plan.last_step // per_epoch)
        timed: dict[str, float | bool] = {}
        if planner := self.length.planner:
            timed = {
                "seconds": self.clock.elapsed,
                "limit_seconds": planner.limit_seconds,
                "settled": planner.is_settled,
            }
        return {
            "epoch": min(epochs, (state.step - 1) // per_epoch + 1),
            "epochs": epochs,
            "loss": round(state.sums.mean_loss, 4),
            **self._quality_so_far(),
            "learning_rate": self.learning_rate,
            "images_per_second": round(rate, 1),
            **timed,
        }

    def _quality_so_far(self) -> dict[str, float | bool]:
        """Return the training accuracy, or of sets of labels the latest mAP on validation."""
        if self.step.counts_correct:
            return {"accuracy": round(self.state.sums.accuracy, 4)}
        latest = self.state.history[-1].validation_map if self.state.history else None
        return {} if latest is None else {"mAP": round(latest, 4)}

    # -- validation and checkpoints ------------------------------------------------------------

    def _validate(self, *, last: bool) -> None:
        self.step.finite.settle()
        state = self.state
        self._count_training_time(self.clock.read())
        if averages_itself(state.optimizer):
            self._take_averaged()
        images = self._images_to_validate(last=last)
        compared = min(images, self.length.validations.compared())
        metrics = self.validator.metrics(state.average.model, images, compared)
        loss = metrics["validation_loss"]
        if not math.isfinite(loss):  # the last update was too large
            raise Diverged(state.step - 1, self.learning_rate, loss, math.nan, validated=True)
        record = EpochRecord(
            epoch=state.step / self.length.steps_per_epoch,
            step=state.step,
            train_loss=state.sums.mean_loss,
            train_accuracy=state.sums.accuracy if self.step.counts_correct else None,
            learning_rate=self.learning_rate,
            images_per_second=state.sums.images / max(state.sums.seconds, 1e-9),
            **metrics,
        )
        state.history.append(record)
        state.sums.next_epoch()
        seconds = self.clock.read()
        state.validation_seconds += seconds
        if timed := self.length.timed:
            timed.validated(images, seconds, self.clock.elapsed)
        self._keep_weights(record)
        values = record.metric_values()
        if self.job.tokens is None and self.clock.elapsed > _LONG_RUN_SECONDS:
            rate = state.sums.total_images / state.training_seconds / self.ranks.size
            progress = state.plan.progress_of(state.step)
            values["matmul_share"] = self._share.at(rate, progress)
        self.events.write("metrics", step=state.step, values=values)
        self.checkpoints.mark(state)
        self.clock.read()
        if self.checkpoints.is_due or not self.checkpoints.exist:
            self._write_checkpoint()

    @cached_property
    def _share(self) -> ComputeShare:
        model, step = self.state.average.model, self.step
        return ComputeShare(model, self.job.image, step.size, step.device, step.precision)

    def _take_averaged(self) -> None:
        """Take the weights that the optimizer averages, with batch-norm statistics of their own.

        That takes as long however many images are validated.
        """
        state = self.state
        state.average.take_averaged(state.model, state.optimizer)
        measure_batch_norm_often(state.average.model, self.data, self.job)
        wait_for(self.step.device)
        seconds = self.clock.read()
        state.batch_norm_seconds += seconds
        if timed := self.length.timed:
            timed.prepared(seconds)

    def _keep_weights(self, record: EpochRecord) -> None:
        """Keep the weights just validated if they are the best, or will be averaged."""
        state = self.state
        is_best = state.best is None or record.replaces(state.best, state.history)
        if is_best:
            state.best = record
        if not self.ranks.is_first:
            return
        self.last_weights.add(state.step, state.average.model)
        if is_best:
            folder = checkpoint.folder_of(self.job.folder, record.step)
            save_trained(folder, self.step.objective, state.average.model, *self._described)
            self.checkpoints.keep_best(record.step)

    @cached_property
    def _described(self) -> tuple[ModelDescription, Provenance]:
        """What is saved with weights; reading what the initial ones have seen takes a while."""
        return description_of(self.job), provenance_of_job(self.job)

    def _images_to_validate(self, *, last: bool) -> int:
        """Return the number of images of the next validation; measures the speed first."""
        plan, timed = self.length.validations, self.length.timed
        if timed and not timed.is_measured:
            timed.measured(*self.validator.speed(self.state.average.model, self.clock.read))
            images, whole = plan.images(self.state.step, last=last), self.validator.images
            if images < whole:
                self.events.write(
                    "warning",
                    message=f"Validating {images:,} of {whole:,} images during training, so that "
                    "validation takes at most a tenth of the time limit.",
                )
        return plan.images(self.state.step, last=last)

    def _restart(self, diverged: Diverged) -> None:
        """Restart from the last validation, or the beginning, with half the learning rate.

        Raises:
            RunError: if no retry is left.
        """
        self.step.finite.forget()
        state, point = self.state, self.checkpoints.restart_point
        files = batch_files(diverged, self.job.folder)
        if self.ranks.is_first:
            save_batch(diverged, self.data, self.own_order.order, self.job.folder)
        for file in files:
            self.events.write("artifact", path=str(file), name=file.name)
        self.ranks.wait_for_first()
        if point is None or len(state.rate_cuts) >= _MOST_RESTARTS:
            coarse = self.step.precision != "float32"
            other = ", or set training.precision to float32" if coarse else ""
            raise RunError(
                f"{diverged}, so training was stopped before the weights changed. {files[-1]} "
                f"lists the images of the batch. Lower optimizer.learning_rate{other}."
            )
        cuts, halvings = [*state.rate_cuts, point.step], state.halvings
        point.restore(state, self.ranks.take_from_first)
        state.rate_cuts, state.halvings = cuts, halvings
        self.checkpoints.mark(state)
        if planner := self.length.planner:
            planner.restart(state.step, state.training_seconds)
        self.events.write(
            "warning",
            message=f"{diverged}; restarting from step {point.step} with the learning rate times "
            f"{state.rate_factor:g}. {files[-1].name} lists the images of the batch.",
        )

    def _write_checkpoint(self) -> None:
        self.state.elapsed_seconds = self.clock.elapsed
        self.checkpoints.write(self.state)
        self.last_weights.checkpointed(self.state.step)

    # -- the result ----------------------------------------------------------------------------

    def _result(self) -> TrainResult:
        """Keep only the last checkpoint and the best weights, and return the result."""
        state = self.state
        if state.best is None:
            raise RunError(
                "No training step was completed, so there is no model. Increase "
                "training.time_limit, or training.epochs if there is no limit."
            )
        return self.result_with(self.checkpoints.finish(state.best.step), state.best)

    def result_with(self, best: Path, record: EpochRecord) -> TrainResult:
        """Return the result of the finished training, with the weights that are kept.

        Args:
            best: folder of the weights.
            record: the validation of these weights.
        """
        state = self.state
        model = self.step.objective.model_in(state.average.model)
        return TrainResult(
            best=best,
            best_step=record.step,
            best_epoch=record.epoch,
            best_validation_accuracy=record.validation_accuracy,
            best_validation_loss=record.validation_loss,
            best_validation_map=record.validation_map,
            steps=state.step,
            epochs=state.step / self.length.steps_per_epoch,
            seconds=self.clock.elapsed,
            images_per_second=state.sums.total_images / state.training_seconds,
            step_plan=tuple(state.plan.knots),
            precision=self.step.precision,
            compiled=self.compiled,
            device=self.step.device.type,
            threads=self.threads,
            parameters=sum(each.numel() for each in model.parameters()),
            stopped_because=self._why_stopped(record),
            stopped_early=self.stops_early,
            validation_plan=tuple((each.step, each.validation_images) for each in state.history),
            rate_cuts=tuple(state.rate_cuts),
            halvings=tuple(state.halvings),
            history=tuple(state.history),
        )

    def _why_stopped(self, best: EpochRecord) -> str:
        settings = self.config.training
        if self.stops_early:
            times = f"{settings.early_stopping} validations"
            return f"no improvement in {times} since epoch {best.epoch:.4g}, which is the best"
        epochs = self.state.step / self.length.steps_per_epoch
        if settings.time_limit and settings.epochs and epochs >= settings.epochs:
            return f"maximum of {settings.epochs} epochs"
        if settings.time_limit:
            return f"time limit of {settings.time_limit}"
        return "all planned steps completed"

    def _averaged(self, result: TrainResult) -> TrainResult:
        """Return the result with the average of the last weights, if the plan asks for it."""
        count, state = self.last_weights.count, self.state
        if count is None:
            return result
        own = [record.step for record in state.history if record.step > self.first_step]
        steps, folder, model = own[-count:], self.job.folder / _AVERAGED, state.average.model
        with self.ranks.first_before_others(self.job.folder):
            self.last_weights.save_average(steps, model, folder, self.data, self.job)
        images = state.history[-1].validation_images  # all, or as many as a time limit allows
        metrics = self.validator.metrics(model, images, images)
        record = AverageRecord(
            validations=len(steps),
            accuracy=metrics["validation_accuracy"],
            loss=metrics["validation_loss"],
            map=metrics.get("validation_map"),
        )
        values = {
            "averaged/accuracy": record.accuracy,
            "averaged/mAP": record.map,
            "averaged/loss": record.loss,
        }
        self.events.write("metrics", step=state.step, values=without_none(values))
        return result.model_copy(
            update={
                "best": folder,
                "best_step": state.step,
                "best_validation_accuracy": record.accuracy,
                "best_validation_map": record.map,
                "averaged": record,
            }
        )
