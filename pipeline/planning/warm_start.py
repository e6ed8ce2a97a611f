"""The plan for a run with a preset that starts from a model of Patchline's own, or from an encoder.

A pure function, as in `patchline.pipeline.planning.plan`. Optimizer and learning rate are those for
random weights: a smaller rate, or AdamW at 1e-3, was behind on a tenth more images. Unless the user
decides it, the length is a third of what the preset would train from random weights, which reaches
their accuracy (benchmarks/warm_starts.py). An encoder has never seen a class: it is trained for the
preset's whole length, with a low learning rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from patchline.pipeline import config_files
from patchline.pipeline.planning.facts import Plan, PlanFacts
from patchline.pipeline.planning.fixed_length import length_is_set
from patchline.pipeline.planning.plan import plan
from patchline.pipeline.training.initial_weights import recipe

_RATE = "optimizer.learning_rate"


def with_rate(user_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by dotted key, with the learning rate for an encoder unless one is set.

    The optimizer is measured and planned with it.
    """
    return {_RATE: recipe.WARM_START["optimizer"]["learning_rate"], **user_settings}


def encoder_plan(facts: PlanFacts, settings: Mapping[str, Any], given: Collection[str]) -> Plan:
    """Return the plan for the weights of an encoder; see `warm_start_plan`.

    Args:
        facts: as there.
        settings: as there, and the learning rate; see `with_rate`.
        given: keys of the settings that the user has set.
    """
    made = plan(facts, settings, follows=True)
    rate = {} if _RATE in given else {"optimizer": {"learning_rate": settings[_RATE]}}
    why_rate = (
        "the learning rate as set"
        if _RATE in given
        else f"learning rate {settings[_RATE]:g}, which changes trained weights only slowly"
    )
    length = "as set" if length_is_set(settings) else f"that of the preset {facts.preset}"
    reason = f"from an encoder: {why_rate}; the length is {length}"
    return made.model_copy(
        update={
            "settings": config_files.merged(made.settings, rate),
            "reasons": (reason, *made.reasons),
        }
    )


def warm_start_plan(facts: PlanFacts, settings: Mapping[str, Any]) -> Plan:
    """Return the plan.

    Args:
        facts: data, machine and measured speeds.
        settings: by dotted key: what the user has set, and what follows from the initial weights.
    """
    shorter = facts.model_copy(update={"length_share": recipe.WARM_SHARE})
    made = plan(shorter, settings, follows=True)
    third = f"a third of that of the preset {facts.preset} for random weights"
    reason = f"warm start: the length is {'as set' if length_is_set(settings) else third}"
    return made.model_copy(update={"reasons": (reason, *made.reasons)})
