"""Successive halving: at which epochs trials are compared, and which of them continue.

The rule is that of asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2):
of the trials that have reached a rung so far, the best one in `reduction` continues. Each decision
is stored with its trial: a process that resumes one would judge it against values reported since.
Optuna's pruner has the same rule, but asked again at a rung it always lets a trial continue, which
a process does that was killed before the answer was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_RUNGS = 2
"""By default there are at most so many rungs before the end."""


def rungs(epochs: int, reduction: int, first: int | None = None) -> tuple[int, ...]:
    """Return the epochs at which a trial stops until it is compared; the last is its end.

    Args:
        epochs: of a whole fit.
        reduction: the factor between two rungs.
        first: epochs until the first rung; by default the shortest with at most `MOST_RUNGS` rungs
            before the end.
    """
    if first is None:
        first = max(1, round(epochs / reduction**MOST_RUNGS))
    steps: list[int] = []
    rung = first
    while rung < epochs:
        steps.append(rung)
        rung *= reduction
    return (*steps, epochs)


def continues(value: float, reached: Sequence[float], reduction: int) -> bool:
    """Return whether a trial continues after a rung.

    Of fewer trials than `reduction`, the best continues. Equal values continue together.

    Args:
        value: of the trial; larger is better.
        reached: the values of all trials that have reached the rung, this one included.
        reduction: one of so many continues.
    """
    places = max(1, len(reached) // reduction)
    return sum(other > value for other in reached) < places


def expected_epochs(steps: Sequence[int], reduction: int, trials: int) -> float:
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
