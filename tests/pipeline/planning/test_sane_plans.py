"""Plans over a grid of data, machines and times: what must rise rises, and nothing jumps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from benchmarks.plans import CPU, MACHINES, Case, Machine, facts_of, settings_of, steps_of, table
from patchline.pipeline.planning.draft import Draft, draft_plan
from patchline.pipeline.planning.facts import PlanFacts
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.planning.tiers import (
    tiers_for,
    work,
)
from patchline.pipeline.presets import PRESETS, PresetName

IMAGES = (
    *(16, 20, 34, 50, 100, 200, 320, 348, 500, 640, 900, 1_000, 1_700, 3_000, 4_200, 5_000),
    *(6_000, 8_500, 12_000, 22_000, 60_000, 200_000, 600_000, 1_200_000),
)
MINUTES = (0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 45, 60, 120, 240, 480, 1_440)
PIXELS = (8, 12, 15, 16, 20, 23, 24, 28, 32, 40, 48, 60, 64, 65, 72, 80, 90, 96, 97, 128, 224, 300)
ROUNDING = 0.9
"""A last batch that is not full, and whole epochs."""
ENOUGH = 5_000
"""Updates from which a GPU's batches grow at their expense."""


def decision(case: Case, machine: Machine) -> tuple[PlanFacts, Draft]:
    """Return what is planned for a case."""
    facts = facts_of(case, machine)
    return facts, draft_plan(facts, settings_of(case))


def place(facts: PlanFacts, made: Draft) -> int:
    """Return the place of the model among those for such images."""
    return tiers_for(facts.data.median_side).index(made.chosen.tier)


def total(made: Draft) -> float:
    """Return the multiplications of all fits."""
    seen = made.length.images_seen * sum(made.fits) / made.fits[0]
    return seen * work(made.chosen.tier, made.chosen.side, 3)


def data_and_machines() -> Iterator[tuple[Machine, PresetName, int, int]]:
    """Yield machines, presets, pixels and classes."""
    yield from product(MACHINES, PRESETS, (8, 20, 32, 64, 300), (2, 100))


def test_more_images_never_get_less() -> None:
    """Neither a smaller model nor, with the same model, a smaller batch or fewer updates."""
    for machine, preset, pixels, classes in data_and_machines():
        made = [decision(Case(n, classes, pixels, None, preset), machine) for n in IMAGES[::2]]
        for (facts, fewer), (others, more) in pairwise(made):
            where = (machine.title, preset, pixels, classes, facts.data.training_images)
            assert place(others, more) >= place(facts, fewer), where
            if more.chosen.tier != fewer.chosen.tier:
                continue
            assert more.batch >= fewer.batch, where
            has_time = more.length.epochs >= more.most_epochs
            if has_time and more.repeated == fewer.repeated:
                assert steps_of(more) >= min(ENOUGH, ROUNDING * steps_of(fewer)), where


def test_more_time_and_a_faster_machine_never_get_less() -> None:
    """Neither a smaller model, nor, with the same model and fits, fewer updates."""
    numbers = (50, 3_000, 1_200_000)
    for images, pixels, classes in product(numbers, PIXELS[::7], (2, 100)):
        for machine in MACHINES:
            made = [decision(Case(images, classes, pixels, each), machine) for each in MINUTES[::4]]
            for (facts, less), (others, more) in pairwise(made):
                where = (machine.title, images, pixels, classes, less.length)
                assert place(others, more) >= place(facts, less), where
                assert total(more) >= 0.95 * total(less), where
                if (more.chosen.tier, more.repeated) == (less.chosen.tier, less.repeated):
                    assert more.batch >= less.batch, where
                    assert steps_of(more) >= min(ENOUGH, ROUNDING * steps_of(less)), where


def test_more_pixels_are_never_shrunk_further() -> None:
    """The side of the images never falls; the model is at most one size smaller, for the time."""
    for images, machine, preset in product((500, 3_000, 60_000), MACHINES, PRESETS):
        made = [decision(Case(images, 10, each, None, preset), machine) for each in PIXELS]
        for (facts, fewer), (others, more) in pairwise(made):
            where = (machine.title, images, preset, facts.data.median_side)
            assert more.chosen.side >= fewer.chosen.side, where
            assert place(others, more) >= place(facts, fewer) - 1, where


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.title)
def test_neighbours_get_neighbouring_plans(machine: Machine) -> None:
    """A few images or pixels more change the batch, the length and the computation a little."""
    for images, pixels in product((34, 348, 640, 1_280, 2_560, 5_000, 5_888), (32, 90, 300)):
        (facts, fewer), (others, more) = (
            decision(Case(each, 5, pixels), machine) for each in (images, round(1.03 * images) + 1)
        )
        if more.repeated == fewer.repeated:
            assert more.batch <= 1.3 * fewer.batch, images
            assert 0.75 <= more.length.epochs / fewer.length.epochs <= 1.34, images
            assert more.chosen.tier == fewer.chosen.tier
    for before, after in ((64, 65), (90, 97), (95, 96), (127, 128)):
        (facts, fewer), (others, more) = (
            decision(Case(10_000, 10, each), machine) for each in (before, after)
        )
        assert place(facts, fewer) == place(others, more), before
        costs = [work(each.chosen.tier, each.chosen.side, 3) for each in (fewer, more)]
        assert 0.5 <= costs[0] / costs[1] <= 2, before


@pytest.mark.parametrize(
    "user",
    [
        {"training.epochs": 5},
        {"training.final_model": "best"},
        {"training.folds": None},
        {"training.time_limit": "10s"},
        {"record.average_last": 3},
    ],
    ids=str,
)
def test_training_is_not_repeated_against_the_user_or_the_clock(user: dict[str, object]) -> None:
    """A length in epochs, an answer to the question, or too little time."""
    settings = plan(facts_of(Case(50, 2, 300), CPU), user).settings["training"]
    assert not {"folds", "final_model"} & set(settings)


def test_the_page_shows_the_table_of_cases() -> None:
    """What `python -m benchmarks.plans docs/reference/plans.md` writes."""
    from tests.structure.pages import ROOT

    assert "\n".join(table()) in (ROOT / "docs/reference/plans.md").read_text("utf-8")
