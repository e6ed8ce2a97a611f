"""Which settings mattered: the share of each in the variance of the validation metric (fANOVA).

Trials stop at different epochs, so they are compared at the first rung, which nearly all reach
(Hutter et al. 2014, ICML, on functional analysis of variance).
"""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from patchline.plugins.tools.sweep.space import SearchSpace
from patchline.plugins.tools.sweep.study import TrialRecord, distributions_of

FEWEST_TRIALS = 10
"""With fewer trials the shares say nothing."""


def importances(
    records: Sequence[TrialRecord], space: SearchSpace, first_rung: int, seed: int
) -> dict[str, float]:
    """Return the share of each setting, the largest first; nothing if too few trials tell.

    Args:
        records: of all trials.
        space: of the search.
        first_rung: the epoch at which trials are compared.
        seed: of the random forest.
    """
    at_rung = {each.number: _value_at(each, first_rung) for each in records}
    values = [(each, at_rung[each.number]) for each in records]
    reached = [(each, value) for each, value in values if value is not None]
    if len(reached) < FEWEST_TRIALS or len({value for _, value in reached}) == 1:
        return {}
    study = optuna.create_study(direction="maximize")
    distributions = distributions_of(space)
    for each, value in reached:
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                params=dict(each.settings),
                distributions=distributions,
                value=value,
            )
        )
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=seed))
    return {key: float(share) for key, share in found.items()}


def _value_at(record: TrialRecord, rung: int) -> float | None:
    """Return the validation metric at a rung; without rungs, that of a complete trial."""
    if rung in record.rungs:
        return record.rungs[rung]
    return record.validation if record.state == "complete" and not record.rungs else None
