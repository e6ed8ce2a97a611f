"""Settings of a search: how many trials, how long, over what, where the study is; and its rungs.

Successive halving says at which epochs trials are compared, and which of them continue. The rule is
that of asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2): of the
trials that have reached a rung so far, the best one in `reduction` continues. Each decision is
stored with its trial: a process that resumes one would judge it against values reported since.
Optuna's pruner has the same rule, but asked again at a rung it always lets a trial continue, which
a process does that was killed before the answer was recorded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.training.config import Duration
from patchline.pipeline.workspace.run_memory.interrupted_runs import RunKind, RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

_STORAGE = re.compile(r"postgresql://(?P<user>[^/]*@)?.+")
_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def _check_storage(address: str) -> str:
    match = _STORAGE.fullmatch(address)
    if not match:
        raise ValueError(
            "must be the address of a PostgreSQL database, such as postgresql://user@host/sweeps; "
            "leave it out for a journal file of this machine"
        )
    if ":" in (match["user"] or ""):
        raise ValueError(
            "must not hold a password, which would end up in files and logs. Give it in PGPASSWORD "
            "or in PostgreSQL's password file"
        )
    return address


def _check_study(name: str) -> str:
    if not _STUDY.fullmatch(name):
        raise ValueError(
            "must be 1 to 100 letters, digits, dots, dashes or underscores, the first a letter or "
            "digit"
        )
    return name


class SweepConfig(DocumentedModel):
    """Length and method of a search over settings."""

    trials: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Number of trials, the plan's own settings included; 20 unless time_limit is set, which then
    ends the search."""

    time_limit: Duration | None = None
    """Time of the search: 30m, 8h. A trial that is running then is stopped. The final fits are not
    included."""

    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Trials that train at the same time on this machine; on a CPU they divide its threads."""

    seeds: Annotated[int, Field(ge=2, le=20)] = 3
    """Number of seeds that the best settings and the plan are each trained with at the end."""

    reduction: Annotated[int, Field(ge=2, le=10)] = 3
    """At each rung, one trial of so many continues; rungs are so many times as long as the ones
    before (arXiv 1810.05934)."""

    sampler: Literal["tpe", "random"] = "tpe"
    """How settings are chosen: tpe, a tree-structured Parzen estimator (arXiv 2304.11127); or
    random, to compare with."""

    storage: Annotated[str, AfterValidator(_check_storage)] | None = None
    """PostgreSQL database of a study that several machines work on, such as
    postgresql://user@host/sweeps, with the password in PGPASSWORD; by default a journal file in the
    run's folder."""

    study: Annotated[str, AfterValidator(_check_study)] | None = None
    """Name of the study in the database. A machine that names a study of the same data, plan and
    space joins it."""

    @model_validator(mode="before")
    @classmethod
    def _without_first_rung(cls, values: Any) -> Any:
        """Read what an earlier version has stored, where the first rung was a setting."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key != "first_rung"}

    @property
    def most_trials(self) -> int | None:
        """The number of trials after which the search ends; None if only time ends it."""
        if self.trials is None and self.time_limit is None:
            return DEFAULT_TRIALS
        return self.trials


DEFAULT_TRIALS = 20


COMMAND = "patchline sweep"


class SweepRequest(RunRequest):
    """The request for a search; `config` has the settings of a whole fit of the plan."""

    sweep: SweepConfig
    space: dict[str, Any] = Field(default_factory=dict)
    """Nested settings with their ranges, as they were given; empty for the default space."""


SWEEP = RunKind(COMMAND, SweepRequest)


_MOST_RUNGS = 2
"""At most so many rungs before the end."""


def rungs(epochs: int, reduction: int) -> tuple[int, ...]:
    """Return the epochs at which a trial stops until it is compared; the last is its end.

    The first rung is the shortest with at most two rungs before the end.

    Args:
        epochs: the number of epochs of a whole fit.
        reduction: the factor between two rungs.
    """
    steps: list[int] = []
    rung = max(1, round(epochs / reduction**_MOST_RUNGS))
    while rung < epochs:
        steps.append(rung)
        rung *= reduction
    return (*steps, epochs)


def continues(value: float, reached: Sequence[float], reduction: int) -> bool:
    """Return whether a trial continues after a rung.

    Of fewer trials than `reduction`, the best continues. Equal values continue together.

    Args:
        value: the trial's value at the rung; larger is better.
        reached: the values of all trials that have reached the rung, this one included.
        reduction: one of so many continues.
    """
    places = max(1, len(reached) // reduction)
    return sum(other > value for other in reached) < places


def compute_expected_epochs(steps: Sequence[int], reduction: int, trials: int) -> float:
    """Return how many epochs are expected to be trained if the settings made no difference.

    Then each of the trials that have reached a rung is equally likely to be among the best there.
    The first trial is the plan, which always continues. A search that finds better settings as it
    goes continues more trials than this.

    Args:
        steps: the rungs; the last is the end.
        reduction: one of so many continues.
        trials: number of trials, the plan included.
    """
    reached, epochs, before = float(trials), 0.0, 0
    for step in steps:
        epochs += reached * (step - before)
        before = step
        whole = int(reached)
        shares = [max(1, place // reduction) / place for place in range(1, whole + 2)]
        reached = sum(shares[:whole]) + (reached - whole) * shares[whole]
    return epochs
