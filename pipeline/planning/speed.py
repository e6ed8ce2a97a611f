"""How fast each candidate trains: measured, or estimated from those that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from patchline.pipeline.planning.facts import MachineFacts, PlanFacts, Speed
from patchline.pipeline.planning.tiers import OWN, Tier, image_side, work
from patchline.pipeline.terminal_words import counted

_FLOPS_PER_MAC = 6
"""A forward and a backward pass, two operations each."""
_THREAD_FLOPS = 8e9
"""Of a CPU thread in training, where nothing was measured: half of what two AVX2 cores reach."""
_ACCELERATOR_FLOPS = {"cuda": 4e12, "mps": 5e11}
_KEEPS_GAIN = 0.8
"""Share of a larger model's work that it really costs: small models keep cores waiting."""

_NEGLIGIBLE, _RESERVE, _MOST_WORKERS = 0.05, 1.2, 16
"""Cores that augmentation needs below which it needs no worker; and how many more than that."""
_LEAST_SHARE_OF_TIME = 0.02
"""Of a step, for the model: a measured augmentation cannot have taken all of it."""


def images_per_second(facts: PlanFacts, tier: Tier, tiers: Sequence[Tier], name: str) -> float:
    """Return the training speed of a candidate.

    Args:
        facts: with the speeds that were measured.
        tier: of the candidate.
        tiers: all that are compared, rising in size.
        name: of the candidate.
    """
    measured = {each.candidate: reached(facts.machine, each) for each in facts.speeds}
    if name in measured:
        return measured[name]
    measured_tiers = [each for each in tiers if measured.get(each.name)]
    if name == OWN or not measured_tiers:
        return guessed(facts.machine, tier, facts)
    for below, above in pairwise(measured_tiers):
        if tiers.index(below) < tiers.index(tier) < tiers.index(above):
            works = [_work(each, facts) for each in (below, tier, above)]
            return _between(works, measured[below.name], measured[above.name])
    nearest = min(measured_tiers, key=lambda each: abs(tiers.index(each) - tiers.index(tier)))
    ratio = _work(tier, facts) / _work(nearest, facts)
    if ratio > 1:
        ratio = max(1.0, _KEEPS_GAIN * ratio)
    return measured[nearest.name] / ratio


def _between(works: Sequence[float], below: float, above: float) -> float:
    """Return the speed of a model between two that were measured, a power of its work.

    So a small model that a GPU waits for says nothing about a large one.
    """
    first, own, last = (math.log(work) for work in works)
    share = (own - first) / (last - first) if last > first else 0.5
    return math.exp((1 - share) * math.log(below) + share * math.log(above))


def reached(machine: MachineFacts, measured: Speed) -> float:
    """Return the speed that a training run reaches: with data-loader workers, if it needs them.

    Args:
        machine: has the cores, and the processes that train together.
        measured: of one process.
    """
    if not measured.loaded_per_second or not measured.images_per_second:
        return machine.times_as_fast * measured.images_per_second
    with_workers = measured.loaded_per_second * max(1, workers(machine, measured))
    one = max(measured.images_per_second, min(_alone(measured), with_workers))
    return machine.times_as_fast * one


def workers(machine: MachineFacts, measured: Speed) -> int:
    """Return how many data-loader workers of a process keep up with the training; 0 on a CPU.

    Args:
        machine: has the cores, which the processes share.
        measured: of the model; its trial steps augmented their images themselves.
    """
    if not measured.loaded_per_second or not measured.images_per_second:
        return 0
    return workers_for(machine, _alone(measured), measured.loaded_per_second)


def workers_for(machine: MachineFacts, rate: float, loaded_per_second: float) -> int:
    """Return how many data-loader workers of a process keep up with the training; 0 on a CPU.

    Args:
        machine: has the cores, which the processes share.
        rate: images that a process trains in a second, without augmenting them.
        loaded_per_second: images that one core augments; 0 if whole batches are, on the device.
    """
    if machine.device == "cpu" or not loaded_per_second:
        return 0
    needed = rate / loaded_per_second
    if needed < _NEGLIGIBLE:
        return 0
    cores = machine.threads // machine.local_processes
    return max(1, min(_MOST_WORKERS, cores - 1, math.ceil(_RESERVE * needed)))


def why_workers(machine: MachineFacts, number: int, loaded_per_second: float) -> str:
    """Return the reason for data-loader workers."""
    each = " in each process" if machine.processes > 1 else ""
    return (
        f"{counted(number, 'data-loader worker')}{each}: a core augments "
        f"{loaded_per_second:,.0f} images/s (data.workers)"
    )


def _alone(measured: Speed) -> float:
    """Return the speed of the training steps without the augmentation of single images."""
    seconds = 1 / measured.images_per_second
    return 1 / max(_LEAST_SHARE_OF_TIME * seconds, seconds - 1 / measured.loaded_per_second)


def is_measured(facts: PlanFacts, name: str) -> bool:
    """Return whether the speed of a candidate was measured itself."""
    return any(speed.candidate == name for speed in facts.speeds)


def guessed(machine: MachineFacts, tier: Tier, facts: PlanFacts) -> float:
    """Return the speed of a tier on a machine where nothing was measured."""
    flops = _ACCELERATOR_FLOPS.get(machine.device, _THREAD_FLOPS * machine.threads)
    return machine.times_as_fast * flops / (_FLOPS_PER_MAC * _work(tier, facts))


def _work(tier: Tier, facts: PlanFacts) -> float:
    data = facts.data
    return work(tier, image_side(tier, data.median_side), 1 if data.greyscale else 3)
