"""The study of a search in Optuna: which settings are tried, what they reached, what comes next.

The study is a journal file in the folder of the run, or a PostgreSQL database that several machines
share. It is the only record of the trials: a process that is killed at any point finds in it which
trials have begun, at which rungs they were compared, and with which values.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import FrozenTrial, TrialState
from pydantic import Field, ValidationError

from patchline.pipeline.errors import ConfigError, RunError, StorageError, first_line
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.file_locks import acquire
from patchline.pipeline.workspace.files.json_lines import AppendLog, DamagedLineError
from patchline.plugins.tools.sweep.config import continues
from patchline.plugins.tools.sweep.space import Dimension, NumberRange, SearchSpace, Value

logger = logging.getLogger(__name__)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used with")

JOURNAL_FILE, STUDY = "study.jsonl", "study"
"""Of the run's folder, and the name of the study in it."""
State = Literal["complete", "stopped", "failed", "unfinished"]
_HEARTBEAT_SECONDS, _SILENT_SECONDS = 20, 120
"""Between two signs of life of a machine in the database; and until one without any is gone."""
_IDENTITY = "patchline"
"""Attribute of a study: what its trials have in common."""
_RANDOM_TRIALS = (4, 10)
"""At least and at most so many trials come before the estimator chooses."""
_SHARE_OF_RANDOM = 3
"""A third of the trials, within these limits."""


class TrialRecord(FrozenModel):
    """One trial as the study knows it."""

    number: int
    """The number of the trial, counted from 0; trial 0 has the settings of the plan."""
    settings: dict[str, Value]
    """Values of the settings, by dotted key."""
    state: State
    is_plan: bool = False
    epochs: float = 0.0
    """Epochs that it has trained so far."""
    validation: float | None = None
    """Accuracy, or mAP of sets of labels: of the kept weights of a complete trial, at its last rung
    of any other."""
    validation_loss: float | None = None
    rungs: dict[int, float] = Field(default_factory=dict)
    """The validation metric at each rung, by epoch."""
    seconds: float = 0.0
    run_id: str = ""
    """The nested MLflow run; empty before it is opened."""
    reason: str = ""
    """Why it stopped or failed."""
    owner: str = ""
    """Who trains it: a machine and the folder of a run."""


class StudyIdentity(FrozenModel):
    """What all trials of a study have in common; machines that join it must agree."""

    name: str
    data_fingerprint: str
    plan: str
    """A digest of the plan's settings."""
    space: SearchSpace
    rungs: tuple[int, ...]
    parent_run_id: str
    """The MLflow run that the trials are nested in."""


@dataclass(frozen=True)
class StudyOptions:
    """How one process takes part in a study."""

    owner: str
    """A machine and the folder of a run; its unfinished trials are resumed there alone."""
    storage: str | None
    """Address of a database that several machines use; None for the journal of this run."""
    reduction: int
    """At a rung, one of so many trials continues."""
    most_trials: int | None
    """None if only time ends the search."""
    sampler: Literal["tpe", "random"]
    seed: int


class Trial:
    """A trial that this process trains."""

    def __init__(self, trial: optuna.Trial, owner: Study) -> None:
        self._trial, self._study = trial, owner

    @property
    def record(self) -> TrialRecord:
        """What the study knows about it."""
        return self._study.record(self._trial.number)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Let other machines see, as long as the block runs, that this process trains it."""
        storage = self._study.database
        if storage is None:
            yield
            return
        trial_id = self._trial._trial_id  # noqa: SLF001
        # An error is reported by the next access of the search itself.
        with Periodic(lambda: storage.record_heartbeat(trial_id), _HEARTBEAT_SECONDS):
            yield

    def started(self, run_id: str) -> None:
        """Record its MLflow run."""
        self._trial.set_user_attr("run_id", run_id)

    def report(self, epoch: int, value: float, seconds: float) -> bool:
        """Record what it has reached at a rung, and return whether it continues.

        Args:
            epoch: the rung; one that was reported before keeps its value, and its decision.
            value: the validation metric; larger is better.
            seconds: seconds that its training has taken so far.
        """
        decisions = self._trial.user_attrs.get("decisions", {})
        if str(epoch) in decisions:
            return bool(decisions[str(epoch)])
        if epoch not in self.record.rungs:
            self._trial.set_user_attr("seconds", seconds)
            self._trial.set_user_attr("epochs", float(epoch))
            self._trial.report(value, epoch)
        decision = self._study.continues_after(epoch, self.record)
        self._trial.set_user_attr("decisions", {**decisions, str(epoch): decision})
        return decision

    def complete(self, value: float, loss: float, epochs: float, seconds: float) -> None:
        """Record the result of a whole fit."""
        result = {"validation_loss": loss, "epochs": epochs, "seconds": seconds}
        for key, each in result.items():
            self._trial.set_user_attr(key, each)
        self._study.tell(self._trial, TrialState.COMPLETE, value)

    def stop(self, reason: str) -> None:
        """Record that it was stopped at a rung, or by the end of the search."""
        self._trial.set_user_attr("reason", reason)
        self._study.tell(self._trial, TrialState.PRUNED)

    def fail(self, reason: str) -> None:
        """Record that it could not be trained; the sampler then avoids its neighbourhood.

        A failed trial of Optuna would say nothing to the sampler, which then tries the same again;
        one that is pruned without a value counts as the worst.
        """
        self._trial.set_user_attr("reason", reason)
        self._trial.set_user_attr("failed", True)
        self._study.tell(self._trial, TrialState.PRUNED)


class Study:
    """The study of one search."""

    def __init__(self, study: optuna.Study, space: SearchSpace, options: StudyOptions) -> None:
        self._study, self._options = study, options
        self._limit = options.most_trials
        self._distributions = distributions_of(space)
        self._lock = threading.RLock()
        self._taken: set[int] = set()
        """Trials that threads of this process train."""

    def begin(self, plan_values: Mapping[str, Value] | None) -> None:
        """Make the plan's own settings the first trial, unless the study has trials already."""
        with self._lock:
            if plan_values is not None and not self._study.get_trials(deepcopy=False):
                self._study.enqueue_trial(dict(plan_values), user_attrs={"is_plan": True})

    def next(self) -> Trial | None:
        """Return an unfinished trial of this owner, or a new one; None if there are enough."""
        with self._lock:
            unfinished = self._unfinished()
            if unfinished is not None:
                return self._entered(unfinished)
            started = [
                each
                for each in self._study.get_trials(deepcopy=False)
                if each.state is not TrialState.WAITING
            ]
            if self._limit is not None and len(started) >= self._limit:
                return None
            self._study.sampler = self._sampler(len(started))
            asked = self._study.ask()
            if self._limit is not None and asked.number >= self._limit:
                self._study.tell(asked, state=TrialState.FAIL)  # another machine took the last one
                return None
            asked.set_user_attr("owner", self._options.owner)
            return self._entered(asked.number)

    def records(self) -> list[TrialRecord]:
        """Return all trials in their order."""
        return [
            record_of(each)
            for each in self._study.get_trials(deepcopy=False)
            if each.state not in (TrialState.WAITING, TrialState.FAIL)
        ]

    def own_records(self) -> list[TrialRecord]:
        """Return the trials of this owner."""
        return [each for each in self.records() if each.owner == self._options.owner]

    @property
    def database(self) -> RDBStorage | None:
        """The database that machines share; None for the journal of one run."""
        storage = getattr(self._study._storage, "_backend", self._study._storage)  # noqa: SLF001
        return storage if isinstance(storage, RDBStorage) else None

    def alive_elsewhere(self) -> list[TrialRecord]:
        """Return the unfinished trials of other machines that have not fallen silent."""
        if self.database is None:
            return []
        silent = set(self.database._get_stale_trial_ids(self._study._study_id))  # noqa: SLF001
        return [
            record_of(each)
            for each in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            if each._trial_id not in silent  # noqa: SLF001
            and each.user_attrs.get("owner") not in (None, self._options.owner)
        ]

    def record(self, number: int) -> TrialRecord:
        """Return one trial."""
        return next(each for each in self.records() if each.number == number)

    def continues_after(self, epoch: int, record: TrialRecord) -> bool:
        """Return whether a trial continues after a rung that it has reported.

        The plan's own settings always do, so that there is something to compare with.
        """
        reached = [each.rungs[epoch] for each in self.records() if epoch in each.rungs]
        return record.is_plan or continues(record.rungs[epoch], reached, self._options.reduction)

    def tell(self, trial: optuna.Trial, state: TrialState, value: float | None = None) -> None:
        """Record the end of a trial."""
        self._study.tell(trial, value, state=state)
        with self._lock:
            self._taken.discard(trial.number)

    def _unfinished(self) -> int | None:
        """Return a trial of this owner that a killed process has left."""
        for each in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            owner = each.user_attrs.get("owner")
            if owner is None and self._options.storage is None:
                owner = self._options.owner  # killed before it was noted
            if owner == self._options.owner and each.number not in self._taken:
                return each.number
        return None

    def _entered(self, number: int) -> Trial:
        """Return a running trial with a value for each dimension."""
        self._taken.add(number)
        self._study.sampler = self._sampler(number)
        trial_id = self._study.get_trials(deepcopy=False)[number]._trial_id  # noqa: SLF001
        trial = optuna.Trial(self._study, trial_id)
        trial.set_user_attr("owner", self._options.owner)
        if self.database is not None:
            self.database.record_heartbeat(trial_id)
        for key, distribution in self._distributions.items():
            trial._suggest(key, distribution)  # noqa: SLF001 - as `Study.ask` does it
        return Trial(trial, self)

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler of one trial.

        Its seed depends on the number alone, so a search that was interrupted tries what it would
        have tried.
        """
        seed = (self._options.seed * 1_000_003 + number) % 2**32
        if self._options.sampler == "random":
            return RandomSampler(seed=seed)
        fewest, most = _RANDOM_TRIALS
        limit = self._limit or _SHARE_OF_RANDOM * most
        startup = min(most, max(fewest, limit // _SHARE_OF_RANDOM))
        return TPESampler(seed=seed, multivariate=True, n_startup_trials=startup)


def open_study(
    identity: StudyIdentity, folder: Path, options: StudyOptions
) -> tuple[Study, StudyIdentity]:
    """Open a study or create it, and return it with its identity.

    Args:
        identity: the search's identity; that of a study which exists already must agree, but for
            the run.
        folder: the run's folder, which holds the journal.
        options: how this process takes part in the study.

    Raises:
        ConfigError: if the study is one of other data, another plan or another space, or the
            database cannot be used.
        StorageError: if the study is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = options.storage
    kept = _database(storage) if storage else _journal(folder / JOURNAL_FILE)
    with storage_errors(folder):
        study = optuna.create_study(
            storage=kept,
            study_name=identity.name if storage else STUDY,
            direction="maximize",
            load_if_exists=True,
        )
        stored = study.user_attrs.get(_IDENTITY)
        if stored is None:
            study.set_user_attr(_IDENTITY, identity.model_dump_json())
            return Study(study, identity.space, options), identity
    try:
        before = StudyIdentity.model_validate_json(stored)
    except ValidationError as error:
        where = redact_text(storage) if storage else folder / JOURNAL_FILE
        raise _make_damage_error(
            where, "its identity is not one of this version of Patchline"
        ) from error
    names = {
        "data_fingerprint": "data",
        "plan": "settings",
        "space": "search space",
        "rungs": "epochs or rungs",
    }
    for field, what in names.items():
        if getattr(before, field) != getattr(identity, field):
            raise ConfigError(
                f"The study {identity.name} in {redact_text(str(storage))} has other {what}, so "
                "this machine cannot join it. Choose another --sweep.study, or give the same data "
                "and settings."
            )
    return Study(study, before.space, options), before


def record_of(trial: FrozenTrial) -> TrialRecord:
    """Return what the study knows about a trial."""
    attributes = trial.user_attrs
    state: State = "unfinished"
    if trial.state is TrialState.COMPLETE:
        state = "complete"
    elif trial.state is TrialState.PRUNED:
        state = "failed" if attributes.get("failed") else "stopped"
    rungs = {int(step): float(value) for step, value in trial.intermediate_values.items()}
    last = rungs[max(rungs)] if rungs else None
    return TrialRecord(
        number=trial.number,
        settings=dict(trial.params),
        state=state,
        validation=trial.value if trial.state is TrialState.COMPLETE else last,
        rungs=rungs,
        **{key: attributes[key] for key in attributes.keys() & TrialRecord.model_fields.keys()},
    )


def best_of(records: list[TrialRecord]) -> TrialRecord | None:
    """Return the complete trial with the highest validation metric; of equals, the lowest loss."""
    complete = [each for each in records if each.state == "complete"]
    return max(
        complete,
        key=lambda each: (each.validation or 0.0, -(each.validation_loss or 0.0), -each.number),
        default=None,
    )


def distributions_of(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return what Optuna draws each setting from."""
    return {key: _distribution(dimension) for key, dimension in space.dimensions.items()}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if not isinstance(dimension, NumberRange):
        return CategoricalDistribution(dimension.values)
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


class _Lock(BaseJournalFileLock):
    """A lock that the system releases when its process ends, however it ends.

    Optuna's own is a link that a killed process leaves behind, for which the next one waits.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._threads = file, threading.Lock()

    def acquire(self) -> bool:
        self._threads.acquire()
        self._held = acquire(self._file)
        return True

    def release(self) -> None:
        if self._held is not None:
            self._held.release()
        self._threads.release()


def _journal(file: Path) -> BaseStorage:
    """Return the storage of a journal, whose last line a killed process may have left unfinished.

    Optuna would append to that line, and then read neither it nor anything after it.
    """
    lock = _Lock(file.with_suffix(".lock"))
    lock.acquire()
    try:
        with storage_errors(file):
            _without_torn_line(file)
    finally:
        lock.release()
    backend = JournalFileBackend(str(file), lock_obj=lock)
    try:
        return JournalStorage(backend)
    except OSError:
        raise
    except Exception as error:  # whatever Optuna meets in lines that do not belong together
        raise _make_damage_error(file, f"its lines contradict each other ({error!r})") from error


def _make_damage_error(where: Path | str, what: str) -> StorageError:
    return StorageError(
        f"The study {where} is damaged: {what}. Restore it from a backup, or start a new search "
        "without --resume."
    )


def _without_torn_line(file: Path) -> None:
    """Remove an unfinished line at the end.

    Raises:
        StorageError: if another line is damaged; then nothing is changed.
    """
    log = AppendLog(file)
    try:
        log.objects(lambda *_: None)
    except DamagedLineError as error:
        raise _make_damage_error(file, str(error)) from error
    except OSError as error:
        raise _make_damage_error(file, f"it cannot be read ({error.strerror})") from error
    if log.repair():
        logger.info("an unfinished line at the end of %s is removed", file)


def _database(address: str) -> BaseStorage:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return RDBStorage(
            address,
            engine_kwargs={"pool_pre_ping": True, "pool_size": 5},
            heartbeat_interval=_HEARTBEAT_SECONDS,
            grace_period=_SILENT_SECONDS,
        )
    except ImportError as error:
        raise ConfigError(
            "A study in PostgreSQL needs the package psycopg2-binary. Install patchline[postgres]."
        ) from error
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = first_line(error.__cause__ or error)
        raise RunError(
            f"The database {redact_text(address)} cannot be used: {reason}. Check --sweep.storage, "
            "the server, and the password in PGPASSWORD."
        ) from error
