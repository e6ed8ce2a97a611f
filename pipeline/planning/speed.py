"""How fast each candidate trains: measured, or estimated from those that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from patchline.pipeline.planning.facts import MachineFacts, PlanFacts
from patchline.pipeline.planning.tiers import OWN, Tier, image_side, work

_FLOPS_PER_MAC = 6
"""A forward and a backward pass, two operations each."""
_THREAD_FLOPS = 8e9
"""Of a CPU thread in training, where nothing was measured: half of what two AVX2 cores reach."""
_ACCELERATOR_FLOPS = {"cuda": 4e12, "mps": 5e11}
_KEEPS_GAIN = 0.8
"""Share of a larger model's work that it really costs: small models keep cores waiting."""


def images_per_second(facts: PlanFacts, tier: Tier, tiers: Sequence[Tier], name: str) -> float:
    """Return the training speed of a candidate.

    Args:
        facts: with the speeds that were measured.
        tier: of the candidate.
        tiers: all that are compared, rising in size.
        name: of the candidate.
    """
    measured = {speed.candidate: speed.images_per_second for speed in facts.speeds}
    if name in measured:
        return measured[name]
    measured_tiers = [each for each in tiers if each.name in measured]
    if name == OWN or not measured_tiers:
        return guessed(facts.machine, tier, facts)
    nearest = min(measured_tiers, key=lambda each: abs(tiers.index(each) - tiers.index(tier)))
    ratio = _work(tier, facts) / _work(nearest, facts)
    if ratio > 1:
        ratio = max(1.0, _KEEPS_GAIN * ratio)
    return measured[nearest.name] / ratio


def is_measured(facts: PlanFacts, name: str) -> bool:
    """Return whether the speed of a candidate was measured itself."""
    return any(speed.candidate == name for speed in facts.speeds)


def guessed(machine: MachineFacts, tier: Tier, facts: PlanFacts) -> float:
    """Return the speed of a tier on a machine where nothing was measured."""
    flops = _ACCELERATOR_FLOPS.get(machine.device, _THREAD_FLOPS * machine.threads)
    return flops / (_FLOPS_PER_MAC * _work(tier, facts))


def _work(tier: Tier, facts: PlanFacts) -> float:
    data = facts.data
    return work(tier, image_side(tier, data.median_side), 1 if data.greyscale else 3)
