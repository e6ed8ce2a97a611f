"""Train one trial of a search: from rung to rung, each time from its checkpoint.

A trial has an MLflow run of its own, nested in that of the search. Its fit is the one of
`patchline run`, in a worker process; it ends at a rung and is continued there if it is among the
best. A process that is killed and resumes continues each trial in the same run.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.errors import (
    PipelineError,
    StorageError,
    TakenOverError,
    TrackingError,
)
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.job import TRAINING, TeacherPredictions, TrainingPart
from patchline.pipeline.training.machine import resources_of
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.parts.launching import TrainingInputs
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event, OnEvent
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import LAST_WEIGHTS
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory
from patchline.pipeline.workspace.tracking import nested_runs, tracked_run
from patchline.pipeline.workspace.tracking.nested_runs import NestedRun
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client
from patchline.plugins.tools.sweep.space import SearchSpace, Value, shown
from patchline.plugins.tools.sweep.study import Trial, TrialRecord

TRIALS_FOLDER, CLOCK_FILE = "trials", "search_seconds.txt"
TRIAL_TAG, STATE_TAG = "patchline.sweep.trial", "patchline.sweep.state"
_COMMAND, _TRIAL = "patchline sweep (trial)", "trial"
_NOT_OF_THE_TRIAL = (TakenOverError, TrackingError, StorageError)
"""Errors that would meet any trial: the search ends, and can be resumed."""


class SearchTimeOverError(Exception):
    """The time limit of the search ended while a trial was training."""


@dataclass(frozen=True)
class TrialInputs:
    """What all trials of a search share."""

    plan: RunConfig
    """The plan's settings, resolved; with the length of a whole fit in epochs, without folds and
    refit."""
    space: SearchSpace
    rungs: tuple[int, ...]
    data: IngestedData
    prepared: PreparedData
    workspace: Path
    parent: TrackedRun
    """The MLflow run of the search."""
    memory: Callable[[], StageMemory]
    """Returns a memory for one run."""
    teacher: TeacherPredictions | None = None
    threads: int | None = None
    """CPU threads of one trial; None for the plan's."""
    prepares_next: bool = False
    """Whether the worker of the next fit starts while one trains; for one trial at a time."""


class SearchClock:
    """The time that a search has taken so far, over all processes that have worked on it."""

    def __init__(self, folder: Path, limit: str | None) -> None:
        self._file = folder / CLOCK_FILE
        self._limit = duration_seconds(limit) if limit else None
        self._before = self._saved()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time so far; what a killed process had not saved is missing."""
        return self._before + time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return self._limit is not None and self.seconds >= self._limit

    def _saved(self) -> float:
        try:
            seconds = float(self._file.read_text("utf-8"))
        except FileNotFoundError:
            return 0.0
        except (OSError, ValueError):
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise StorageError(
                f"{self._file} is damaged: it has to hold the seconds that the search has taken. "
                "Write them into it, such as 0."
            )
        return seconds

    def save(self) -> None:
        """Write it down, for a process that resumes the search."""
        write_text(self._file, f"{self.seconds:.1f}\n")


def train_trial(trial: Trial, inputs: TrialInputs, clock: SearchClock, on_event: OnEvent) -> None:
    """Train a trial until it is complete, is stopped at a rung, or fails; the study records it.

    Args:
        trial: a trial that was entered in the study, maybe by a process that was killed.
        inputs: what all trials share.
        clock: the time that the search has taken so far, and its limit.
        on_event: called with the events of its worker.

    Raises:
        PipelineError: if the store or the disk fails; the trial is then unfinished.
    """
    record = trial.record
    try:
        config = _config_of(record, inputs)
    except PipelineError as error:
        trial.fail(str(error))
        return
    new = NestedRun(
        key=f"{_TRIAL} {record.number}",
        folder=TRIALS_FOLDER,
        command=_COMMAND,
        experiment=str(config.name),
        name=trial_name(record),
    )
    try:
        with nested_runs.open_nested_run(inputs.parent, new, config) as run:
            trial.started(run.run_id)
            tracked_run.set_tags(run, {TRIAL_TAG: str(record.number)})
            try:
                _fit(trial, config, run, inputs, clock, on_event)
            except SearchTimeOverError:
                trial.stop("the time limit of the search")
            if trial.record.state == "stopped":
                _remove_checkpoints(run.folder)
            tracked_run.set_tags(run, {STATE_TAG: state_words(trial.record)})
    except _NOT_OF_THE_TRIAL:
        raise
    except PipelineError as error:  # one trial that diverges does not end the search
        trial.fail(str(error))
    finally:
        clock.save()


def check_nothing_lost(parent: TrackedRun, records: list[TrialRecord], study: str) -> None:
    """Refuse to search again what has been searched, where the study has lost trials.

    A trial is in the study before its MLflow run, and ends there before that run finishes.

    Args:
        parent: the MLflow run of the search.
        records: the record of each trial that the study knows.
        study: the study's file or address, as people are told it.

    Raises:
        StorageError: if MLflow has a trial that the study does not know, or knows as unfinished.
    """
    states = {f"{_TRIAL} {each.number}": each.state for each in records}
    lost = [
        key
        for key, statuses in nested_runs.statuses(parent).items()
        if key.startswith(f"{_TRIAL} ")
        and (key not in states or (states[key] == "unfinished" and "FINISHED" in statuses))
    ]
    if lost:
        raise StorageError(
            f"The study {study} has lost {few_names(sorted(lost))}, "
            f"which MLflow has in the search {parent.run_id[:8]}. Restore the study from a backup, "
            "or start a new search without --resume."
        )


def settle(records: list[TrialRecord]) -> None:
    """Close the runs of ended trials whose process was killed before it could.

    Args:
        records: the record of each trial.
    """
    store = client()
    for record in records:
        if record.state == "unfinished" or not record.run_id:
            continue
        run = store.get_run(record.run_id)
        ended = "FAILED" if record.state == "failed" else "FINISHED"
        if run.info.status != ended:
            store.set_tag(record.run_id, STATE_TAG, state_words(record))
            tracked_run.end_run(store, record.run_id, run.info.experiment_id, ended)


def trial_name(record: TrialRecord) -> str:
    """Return the name of a trial's run: its number and its settings."""
    if record.is_plan:
        return f"trial {record.number}: the plan"
    return f"trial {record.number}: {settings_words(record.settings)}"


def settings_words(settings: Mapping[str, Value]) -> str:
    """Return settings by the last part of their keys, with their values."""
    names = [key.rpartition(".")[2] for key in settings]
    return ", ".join(
        f"{key if names.count(name) > 1 or name == 'name' else name} {shown(value)}"
        for (key, value), name in zip(settings.items(), names, strict=True)
    )


def state_words(record: TrialRecord) -> str:
    """Return how a trial ended, in a few words."""
    if record.state == "complete":
        return "complete"
    if record.state == "stopped":
        return f"stopped after {epochs_words(record.epochs)}: {record.reason}"
    return record.state


def epochs_words(epochs: float) -> str:
    """Return a number of epochs with its noun."""
    return "1 epoch" if epochs == 1 else f"{epochs:.4g} epochs"


def score_of(result: TrainResult) -> float:
    """Return the validation metric of the kept weights: accuracy, or mAP of sets of labels."""
    accuracy, mean_precision = result.best_validation_accuracy, result.best_validation_map
    return (mean_precision if accuracy is None else accuracy) or 0.0


def _config_of(record: TrialRecord, inputs: TrialInputs) -> RunConfig:
    config = inputs.space.resolved(inputs.plan, record.settings, inputs.data)
    if inputs.threads is None:
        return config
    training = config.training.model_copy(update={"threads": inputs.threads})
    return config.model_copy(update={"training": training})


def _fit(
    trial: Trial,
    config: RunConfig,
    run: TrackedRun,
    inputs: TrialInputs,
    clock: SearchClock,
    on_event: OnEvent,
) -> None:
    def watch(event: Event) -> None:
        on_event(event)
        if event["kind"] == "progress" and inputs.prepares_next:
            TRAINING.prewarm(resources_of(config.training))
        if clock.is_over:
            raise SearchTimeOverError

    memory = inputs.memory()
    memory.enter(run.run_id, run.folder)
    training = TrainingInputs(
        config, inputs.data, inputs.prepared, run, memory, watch, inputs.teacher
    )
    for epoch in inputs.rungs[:-1]:
        reported = trial.record.rungs.get(epoch)
        if reported is None:
            part = TrainingPart(epochs=epoch)
            result = launching.train_part(part, TrainResult, training)
            # A later fit of this run finds metrics of this one in the store.
            training = dataclasses.replace(training, run=dataclasses.replace(run, continued=True))
            if result.stopped_early:
                break
            reported, seconds = result.history[-1].compared[0], result.seconds
        else:
            seconds = trial.record.seconds
        clock.save()
        if not trial.report(epoch, reported, seconds):
            trial.stop(f"not among the best at epoch {epoch}")
            return
    result = launching.train_part(TrainingPart(), TrainResult, training)
    clock.save()
    trial.complete(score_of(result), result.best_validation_loss, result.epochs, result.seconds)


def _remove_checkpoints(folder: Path) -> None:
    """Free the disk from the state of a fit that is never continued; its curves are kept."""
    training = folder / TrainingPart().folder
    for file in training.glob("*.safetensors"):
        file.unlink(missing_ok=True)
    shutil.rmtree(training / LAST_WEIGHTS, ignore_errors=True)


def table_of(records: list[TrialRecord], keys: list[str]) -> dict[str, list[Any]]:
    """Return the trials as columns, for a table in MLflow, and for Prefect.

    Args:
        records: the record of each trial.
        keys: keys of the settings in the search space; each has a column.
    """
    rows = sorted(records, key=lambda each: each.number)
    return {
        "trial": [each.number for each in rows],
        "state": [each.state for each in rows],
        "epochs": [each.epochs for each in rows],
        "validation": [each.validation for each in rows],
        "validation_loss": [each.validation_loss for each in rows],
        **{key: [shown(each.settings.get(key)) for each in rows] for key in keys},
        "seconds": [round(each.seconds, 1) for each in rows],
        "run_id": [each.run_id for each in rows],
        "reason": [each.reason for each in rows],
    }
