"""The whole training stage of a run: the ordinary fit, or folds, then a refit or an ensemble.

Each part is a fit with a worker process, a folder and a record in the stage memory of its own.
So a run that is killed repeats no finished part and resumes the interrupted one. What the training
gets of a time limit is the time of all parts together: the first part gets its share of it, and
every later part takes as many epochs, on the same plan.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, mean_of_repeats
from patchline.pipeline.terminal_words import epochs_in_words
from patchline.pipeline.training.config import duration_seconds, with_changes
from patchline.pipeline.training.job import TRAINING, TrainingPart, images_of_fits
from patchline.pipeline.training.machine import resources_of
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.parts.launching import TrainingInputs, replayable
from patchline.pipeline.training.train_result import (
    EnsembleResult,
    FoldRecord,
    FoldsResult,
    RefitResult,
    TrainResult,
)
from patchline.pipeline.workers.event_log import Event, OnEvent
from patchline.pipeline.workspace.tracking import nested_runs, tracked_run
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender

OnNote = Callable[[str], None]
STAGE = "train"


@dataclass(frozen=True)
class RunParts:
    """The training stage of one run.

    Args:
        inputs: what every training needs.
        on_note: called with a sentence about each part.
        on_last_event: called instead of the inputs' `on_event` with the events of the last
            training.
    """

    inputs: TrainingInputs
    on_note: OnNote
    on_last_event: OnEvent | None = None

    def train(self) -> TrainResult:
        """Do all fits that the config asks for, and return the final weights."""
        training = self.inputs.config.training
        if training.folds is not None:
            return self._with_folds(training.folds)
        if extended := self.inputs.config.record.extends:
            self.on_note(
                f"extending the training of run {extended[:8]} to {training.epochs} epochs"
            )
        seen = self._prepare_next if training.is_repeated else self._last_seen
        own = replace(self.inputs, config=self._first(), on_event=seen)
        first = launching.train_part(TrainingPart(), TrainResult, own)
        if first.probe is None:  # a fit has said it
            self.on_note(first.sentence())
        if not training.is_repeated:
            return first
        refit = self._refit(first, _best_epoch(first))
        self._summarise_reuse(STAGE, "refit")
        return first.model_copy(
            update={"best": refit.weights, "selected": first.best, "refit": refit}
        )

    # -- folds ---------------------------------------------------------------------------------

    def _with_folds(self, folds: int) -> TrainResult:
        first, records = self._fold(1, folds, None)
        metrics = [records]
        for fold in range(2, folds + 1):
            _, record = self._fold(fold, folds, first)
            metrics.append(record)
        counts = self.inputs.data.counts
        images = counts["train"] + counts["validation"]
        result = FoldsResult(
            folds=tuple(metrics),
            accuracy=_mean([record.accuracy for record in metrics], images),
            loss=mean_of_repeats([record.loss for record in metrics], (0.0, float("inf"))),
            map=_mean([record.map for record in metrics], images),
        )
        self._report(result)
        stages = [f"fold-{record.fold}" for record in metrics]
        summary = {
            "folds": result,
            "best_validation_accuracy": result.accuracy.value if result.accuracy else None,
            "best_validation_map": result.map.value if result.map else None,
        }
        if self.inputs.config.training.final_model == "ensemble":
            ensemble = self._ensemble(first, result)
            self._summarise_reuse(*stages, "ensemble")
            final = {"best": ensemble.weights, "ensemble": ensemble}
        else:
            first = _with_median_regularization(first, metrics)
            refit = self._refit(first, statistics.median(record.epoch for record in metrics))
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
            config = _build_following_config(config, first)
            if config.record.step_plan is not None:
                part = part.model_copy(update={"plan_steps_per_epoch": first.steps_per_epoch})
        inputs = replace(self.inputs, config=config, on_event=self._prepare_next)
        finished = nested_runs.find_finished_fold(inputs.run, fold)
        if finished is not None:
            recalled = launching.recall_part(part, TrainResult, replace(inputs, run=finished))
            if recalled is not None:
                return recalled, self._record(fold, finished, recalled)
        with nested_runs.fold_run(inputs.run, fold, folds, config) as run:
            trained = launching.train_part(part, TrainResult, replace(inputs, run=run))
            record = self._record(fold, run, trained)
        return trained, record

    def _record(self, fold: int, run: tracked_run.TrackedRun, trained: TrainResult) -> FoldRecord:
        best = next(each for each in trained.history if each.step == trained.best_step)
        accuracy, loss = best.validation_accuracy, best.validation_loss
        mean_precision = best.validation_map
        if trained.averaged is not None:
            accuracy, loss = trained.averaged.accuracy, trained.averaged.loss
            mean_precision = trained.averaged.map
        chosen = f"epoch {best.epoch:.4g}"
        if trained.probe is not None:
            chosen = f"regularization C {trained.probe.regularization:g}"
        shown = "mAP not known" if mean_precision is None else f"mAP {mean_precision:.1%}"
        shown = shown if accuracy is None else f"accuracy {accuracy:.1%}"
        self.on_note(f"fold {fold}: validation {shown} ({chosen})")
        return FoldRecord(
            fold=fold,
            run_id=run.run_id,
            best=trained.best,
            accuracy=accuracy,
            loss=loss,
            epoch=best.epoch,
            map=mean_precision,
            regularization=trained.probe.regularization if trained.probe else None,
        )

    def _report(self, result: FoldsResult) -> None:
        """Log the mean over the folds on the parent run."""
        self.on_note(result.sentence())
        log = MetricSender(self.inputs.run)
        means = {"accuracy": result.accuracy, "mAP": result.map, "loss": result.loss}
        values = {
            f"folds/{name}{end}": value
            for name, mean in means.items()
            if mean is not None
            for end, value in (("", mean.value), ("_low", mean.low), ("_high", mean.high))
        }
        log.add_metrics(values, 0, time.time())
        log.flush()

    # -- the final weights ---------------------------------------------------------------------

    def _refit(self, first: TrainResult, epochs: float) -> RefitResult:
        """Train on the training and validation images, on the plan of the first training.

        A fitted head has its regularization instead.
        """
        config = _build_following_config(self._first(), first)
        part = TrainingPart(refit=True, plan_steps_per_epoch=first.steps_per_epoch, epochs=epochs)
        data = self.inputs.data
        images = data.training_images + data.counts["validation"]
        what = f"training on all {images:,} images for {epochs_in_words(epochs)}"
        if first.probe is not None:
            c_used = first.probe.regularization
            part = part.model_copy(update={"regularization": c_used})
            what = f"fitting the head on all {images:,} images with regularization C {c_used:g}"
        elif first.fine_tuning is not None:
            record = first.fine_tuning
            own = {"regularization": record.regularization, "share": record.share}
            part = part.model_copy(update=own)
            what += f", {record.share:.0%} of the way from the fitted head"
        self.on_note(f"refit: {what}")
        config = with_changes(config, record={"step_plan": first.step_plan})
        return launching.train_part(part, RefitResult, self._last_inputs(config))

    def _ensemble(self, first: TrainResult, result: FoldsResult) -> EnsembleResult:
        """Make one model of the models of all folds."""
        members = tuple(record.best.resolve() for record in result.folds)
        self.on_note(f"ensemble: averaging the probabilities of {len(members)} models")
        inputs = self._last_inputs(replayable(self._first(), first))
        return launching.train_part(TrainingPart(members=members), EnsembleResult, inputs)

    def _last_inputs(self, config: RunConfig) -> TrainingInputs:
        """Return the inputs of the last training, in which the run's system metrics continue."""
        run = replace(self.inputs.run, continued=True)
        return replace(self.inputs, config=config, run=run, on_event=self._last_seen)

    def _last_seen(self, event: Event) -> None:
        (self.on_last_event or self.inputs.on_event)(event)

    def _prepare_next(self, event: Event) -> None:
        """Show an event, and start the process of the next part while this one still trains."""
        self.inputs.on_event(event)
        if event["kind"] == "progress":
            TRAINING.prewarm(resources_of(self.inputs.config.training))

    def _first(self) -> RunConfig:
        """Return the config of the first part, which knows nothing of the others."""
        training = self.inputs.config.training
        alone: dict[str, str | None] = {"folds": None, "final_model": None}
        if training.time_limit is not None:
            seconds = duration_seconds(training.time_limit) * self._first_share()
            if seconds != duration_seconds(training.time_limit):
                alone["time_limit"] = f"{seconds:.3f}s"
        return with_changes(self.inputs.config, training=alone)

    def _first_share(self) -> float:
        """Return the first part's share of a time limit: its share of the images of all parts."""
        images = images_of_parts(self.inputs.config, self.inputs.data)
        return images[0] / sum(images)

    def _summarise_reuse(self, *stages: str) -> None:
        """Tell the memory whether the stage as a whole was computed."""
        if all(stage in self.inputs.memory.recalled for stage in stages):
            self.inputs.memory.recalled.add(STAGE)
            source = self.inputs.memory.reused.get(stages[-1])
            if source:
                self.inputs.memory.reused[STAGE] = source
        else:
            self.inputs.memory.recalled.discard(STAGE)


def images_of_parts(config: RunConfig, data: IngestedData) -> list[float]:
    """Return the number of images that each training of a run has in an epoch."""
    training = config.training
    return images_of_fits(
        data.counts["train"],
        data.counts["validation"],
        folds=training.folds,
        final_model=training.final_model,
        unlabelled=data.counts.get(UNLABELLED, 0),
    )


def _build_following_config(config: RunConfig, first: TrainResult) -> RunConfig:
    """Return the config of a later part: the first one's plan, but not its faults.

    If a later part diverges or runs out of memory, it does so in steps of its own.
    """
    return with_changes(replayable(config, first), record={"rate_cuts": (), "halvings": ()})


def _with_median_regularization(first: TrainResult, folds: Sequence[FoldRecord]) -> TrainResult:
    """Return the first fold's result with the median C of all folds, if heads were fitted.

    Of two in the middle it is the stronger penalty.
    """
    values = [each.regularization for each in folds if each.regularization is not None]
    if first.probe is None or not values:
        return first
    median = statistics.median_low(values)
    return first.model_copy(
        update={
            "probe": first.probe.model_copy(update={"regularization": median}),
            "stopped_because": f"the head was fitted; regularization C {median:g}",
        }
    )


def _best_epoch(trained: TrainResult) -> float:
    """Return the epoch of the best weights."""
    return trained.best_step / trained.steps_per_epoch


def tags(trained: TrainResult) -> dict[str, str]:
    """Return tags that tell how the final weights were made; none for an ordinary training."""
    tags = {}
    if trained.probe is not None:
        tags[tracked_run.REGULARIZATION_TAG] = f"{trained.probe.regularization:g}"
    if trained.fine_tuning is not None:
        tags["training.fine_tuning"] = trained.fine_tuning.sentence()
    if trained.averaged is not None:
        tags["training.averaged_validations"] = str(trained.averaged.validations)
    if trained.folds is not None:
        tags["training.folds"] = str(len(trained.folds.folds))
    if trained.refit is not None:
        tags["training.refit_images"] = str(trained.refit.images)
        if trained.probe is None:
            tags["training.refit_epochs"] = f"{trained.refit.epochs:.4g}"
            tags["training.refit_steps"] = str(trained.refit.steps)
    if trained.ensemble is not None:
        tags["training.ensemble"] = f"{trained.ensemble.models} models"
    return tags


def length(trained: TrainResult) -> str:
    """Return how long the final weights were trained, in a few words."""
    on = f"on {trained.device}, {trained.precision}"
    if trained.probe is not None:
        both = ", fitted on train and validation together" if trained.refit is not None else ""
        return f"a head on {trained.probe.features} frozen features{both}, {on}"
    if trained.ensemble is not None:
        return f"{trained.ensemble.models} models, one of each fold, {on}"
    if trained.fine_tuning is not None:
        on = f"of {trained.fine_tuning.trained} after the head {on}"
    if trained.refit is not None:
        return f"{trained.refit.steps} steps on train and validation together, {on}"
    return f"{trained.steps} steps {on}"


def _mean(values: Sequence[float | None], images: int) -> MetricEstimate | None:
    """Return the mean of a share over the folds; None if it is not known in one of them."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return mean_of_repeats(known, (0.0, 1.0), images)
