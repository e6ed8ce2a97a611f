"""The whole training stage of a run: the ordinary training, or folds, then a refit or an ensemble.

Each part is a training with a worker process, a folder and a record in the stage memory of its own.
So a run that is killed repeats no finished part and resumes the interrupted one. A time limit is
the time of all parts together: the first part gets its share of it, and every later part takes as
many epochs, on the same plan.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from pipeline.config import RunConfig
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.metrics.intervals import mean_of_repeats
from pipeline.run_memory.stage_memory import StageMemory
from pipeline.tracking import nested_runs, tracked_run
from pipeline.tracking.exactly_once_metrics import MetricSender
from pipeline.training import launching
from pipeline.training.config import duration_seconds
from pipeline.training.launching import OnEvent, replayable
from pipeline.training.machine import MODULE
from pipeline.training.part import TrainingPart
from pipeline.training.train_result import (
    EnsembleResult,
    FoldRecord,
    FoldsResult,
    RefitResult,
    TrainResult,
)
from pipeline.workers import worker_start
from pipeline.workers.event_log import Event

_ROOM_BYTES = 3 * 2**30
"""Free memory with which the next process is started early; it takes 0.4 GB."""
OnNote = Callable[[str], None]
STAGE = "train"


@dataclass(frozen=True)
class RunParts:
    """The training stage of one run.

    Args:
        config: resolved.
        data: the manifest.
        prepared: the store.
        run: gets metrics and pictures during training.
        memory: may know the weights.
        on_event: called with every event, for a progress display.
        on_note: called with a sentence about each part.
    """

    config: RunConfig
    data: IngestedData
    prepared: PreparedData
    run: tracked_run.TrackedRun
    memory: StageMemory
    on_event: OnEvent
    on_note: OnNote
    on_last_event: OnEvent | None = None
    """Called instead of `on_event` with the events of the last training."""

    def train(self) -> TrainResult:
        """Do all trainings that the config asks for, and return the final weights."""
        training = self.config.training
        if training.folds is not None:
            return self._with_folds(training.folds)
        seen = self._prepare_next if training.refit else self._last_seen
        inputs = (self.data, self.prepared, self.run, self.memory, seen)
        first = launching.train(self._first(), *inputs)
        if not training.refit:
            return first
        self.on_note(
            f"best weights: epoch {_best_epoch(first):.4g}, validation accuracy "
            f"{first.best_validation_accuracy:.1%}"
        )
        refit = self._refit(first, _best_epoch(first))
        self._summarise_reuse(STAGE, "refit")
        return first.model_copy(
            update={"best": refit.weights, "selected": first.best, "refit": refit}
        )

    # -- folds ---------------------------------------------------------------------------------

    def _with_folds(self, folds: int) -> TrainResult:
        first, records = self._fold(1, folds, None)
        found = [records]
        for fold in range(2, folds + 1):
            _, record = self._fold(fold, folds, first)
            found.append(record)
        result = FoldsResult(
            folds=tuple(found),
            accuracy=mean_of_repeats([record.accuracy for record in found], (0.0, 1.0)),
            loss=mean_of_repeats([record.loss for record in found], (0.0, float("inf"))),
        )
        self._report(result)
        stages = [f"fold-{record.fold}" for record in found]
        summary = {"folds": result, "best_validation_accuracy": result.accuracy.value}
        if self.config.training.ensemble:
            ensemble = self._ensemble(first, result)
            self._summarise_reuse(*stages, "ensemble")
            final = {"best": ensemble.weights, "ensemble": ensemble}
        else:
            refit = self._refit(first, statistics.median(record.epoch for record in found))
            self._summarise_reuse(*stages, "refit")
            final = {"best": refit.weights, "refit": refit}
        return first.model_copy(update={**summary, **final, "history": ()})

    def _fold(
        self, fold: int, folds: int, first: TrainResult | None
    ) -> tuple[TrainResult, FoldRecord]:
        """Train one fold in a nested run; later folds follow the plan of the first."""
        self.on_note(f"fold {fold} of {folds}")
        part, config = TrainingPart(fold=fold, folds=folds), self._first()
        if first is not None:
            config = _following(config, first)
            if config.training.step_plan is not None:
                part = part.model_copy(update={"plan_steps_per_epoch": first.steps_per_epoch})
        stages = (self.memory, self._prepare_next)
        inputs = (part, TrainResult, config, self.data, self.prepared)
        finished = nested_runs.finished_fold(self.run, fold)
        known = launching.known_part(*inputs, finished, self.memory) if finished else None
        if finished and known is not None:
            return known, self._record(fold, finished, known)
        with nested_runs.fold_run(self.run, fold, folds, config) as run:
            trained = launching.train_part(*inputs, run, *stages)
            record = self._record(fold, run, trained)
        return trained, record

    def _record(self, fold: int, run: tracked_run.TrackedRun, trained: TrainResult) -> FoldRecord:
        best = next(each for each in trained.history if each.step == trained.best_step)
        accuracy, loss = best.validation_accuracy, best.validation_loss
        if trained.averaged is not None:
            accuracy, loss = trained.averaged.accuracy, trained.averaged.loss
        self.on_note(f"fold {fold}: validation accuracy {accuracy:.1%} (epoch {best.epoch:.4g})")
        return FoldRecord(
            fold=fold,
            run_id=run.run_id,
            best=trained.best,
            accuracy=accuracy,
            loss=loss,
            epoch=best.epoch,
        )

    def _report(self, result: FoldsResult) -> None:
        """Log the mean over the folds on the parent run."""
        accuracy, loss = result.accuracy, result.loss
        self.on_note(folds_sentence(result))
        log = MetricSender(self.run)
        values = {
            "folds/accuracy": accuracy.value,
            "folds/accuracy_low": accuracy.low,
            "folds/accuracy_high": accuracy.high,
            "folds/loss": loss.value,
            "folds/loss_low": loss.low,
            "folds/loss_high": loss.high,
        }
        log.add_metrics(values, 0, time.time())
        log.flush()

    # -- the final weights ---------------------------------------------------------------------

    def _refit(self, first: TrainResult, epochs: float) -> RefitResult:
        """Train on the training and validation images, on the plan of the first training."""
        config = _following(self._first(), first)
        knots = first.step_plan
        training = config.training.model_copy(update={"step_plan": knots})
        part = TrainingPart(refit=True, plan_steps_per_epoch=first.steps_per_epoch, epochs=epochs)
        images = self.data.counts["train"] + self.data.counts["validation"]
        self.on_note(f"refit: training on all {images:,} images for {epochs:.4g} epochs")
        return launching.train_part(
            part,
            RefitResult,
            config.model_copy(update={"training": training}),
            self.data,
            self.prepared,
            dataclasses.replace(
                self.run, continued=True
            ),  # so that the run's system metrics continue
            self.memory,
            self._last_seen,
        )

    def _ensemble(self, first: TrainResult, result: FoldsResult) -> EnsembleResult:
        """Make one model of the models of all folds."""
        members = tuple(record.best.resolve() for record in result.folds)
        self.on_note(f"ensemble: averaging the probabilities of {len(members)} models")
        return launching.train_part(
            TrainingPart(members=members),
            EnsembleResult,
            replayable(self._first(), first),
            self.data,
            self.prepared,
            dataclasses.replace(self.run, continued=True),
            self.memory,
            self._last_seen,
        )

    def _last_seen(self, event: Event) -> None:
        (self.on_last_event or self.on_event)(event)

    def _prepare_next(self, event: Event) -> None:
        """Show an event, and start the process of the next part while this one still trains."""
        self.on_event(event)
        room = psutil.virtual_memory().available >= _ROOM_BYTES
        if event["kind"] == "progress" and room:
            worker_start.prepare(MODULE)

    def _first(self) -> RunConfig:
        """Return the config of the first part, which knows nothing of the others."""
        training = self.config.training
        alone: dict[str, bool | str | None] = {"folds": None, "refit": False, "ensemble": False}
        if training.time_limit is not None:
            seconds = duration_seconds(training.time_limit) * self._share()
            if seconds != duration_seconds(training.time_limit):
                alone["time_limit"] = f"{seconds:.3f}s"
        return self.config.model_copy(update={"training": training.model_copy(update=alone)})

    def _share(self) -> float:
        """Return the first part's share of a time limit: its share of the images of all parts."""
        training, counts = self.config.training, self.data.counts
        everything = counts["train"] + counts["validation"]
        if training.folds is not None:
            own = (training.folds - 1) / training.folds
            return own / (training.folds * own + (not training.ensemble))
        return counts["train"] / (counts["train"] + everything * training.refit)

    def _summarise_reuse(self, *stages: str) -> None:
        """Tell the memory whether the stage as a whole was computed."""
        if all(stage in self.memory.recalled for stage in stages):
            self.memory.recalled.add(STAGE)
            source = self.memory.reused.get(stages[-1])
            if source:
                self.memory.reused[STAGE] = source
        else:
            self.memory.recalled.discard(STAGE)


def _following(config: RunConfig, first: TrainResult) -> RunConfig:
    """Return the config of a later part: the first one's plan, but not its faults.

    If a later part diverges or runs out of memory, it does so in steps of its own.
    """
    known = replayable(config, first)
    training = known.training.model_copy(update={"rate_cuts": (), "halvings": ()})
    return known.model_copy(update={"training": training})


def _best_epoch(trained: TrainResult) -> float:
    """Return the epoch of the best weights."""
    return trained.best_step / trained.steps_per_epoch


def tags(trained: TrainResult) -> dict[str, str]:
    """Return tags that tell how the final weights were made; none for an ordinary training."""
    found = {}
    if trained.averaged is not None:
        found["training.averaged_validations"] = str(trained.averaged.validations)
    if trained.folds is not None:
        found["training.folds"] = str(len(trained.folds.folds))
    if trained.refit is not None:
        found["training.refit_images"] = str(trained.refit.images)
        found["training.refit_epochs"] = f"{trained.refit.epochs:.4g}"
        found["training.refit_steps"] = str(trained.refit.steps)
    if trained.ensemble is not None:
        found["training.ensemble"] = f"{len(trained.ensemble.temperatures)} models"
    return found


def length(trained: TrainResult) -> str:
    """Return how long the final weights were trained, in a few words."""
    on = f"on {trained.device}, {trained.precision}"
    if trained.ensemble is not None:
        return f"{len(trained.ensemble.temperatures)} models, one of each fold, {on}"
    if trained.refit is not None:
        return f"{trained.refit.steps} steps on train and validation together, {on}"
    return f"{trained.steps} steps {on}"


def folds_sentence(result: FoldsResult) -> str:
    """Return the mean accuracy over the folds, with its interval."""
    accuracy = result.accuracy
    return (
        f"validation accuracy {accuracy.value:.1%}, mean of {accuracy.n} folds (95% t interval "
        f"{accuracy.low:.1%} to {accuracy.high:.1%})"
    )
