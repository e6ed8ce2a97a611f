"""What a preset plans for which images, classes, pixels, minutes and machine: a table of cases.

    python -m benchmarks.plans                                print the table
    python -m benchmarks.plans docs/reference/plans.md        update it in the page

Nothing is measured: each machine has assumed speeds, as multiplications that it does in a second of
training. A real plan measures its own.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.model_figures import replace_table
from patchline.pipeline.planning.draft import Draft, draft_plan
from patchline.pipeline.planning.facts import DataFacts, MachineFacts, PlanFacts, Speed
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.planning.tiers import image_side, tiers_for, work
from patchline.pipeline.presets import PresetName
from patchline.pipeline.terminal_words import duration

TABLE = "plans"
_PER_MAC = 6
"""A forward and a backward pass, two operations each."""


@dataclass(frozen=True)
class Machine:
    """A machine with assumed speeds."""

    title: str
    facts: MachineFacts
    flops: float
    """Operations a second in training, where the model is large enough."""
    images_per_second: float
    """At most, however small the model: launching kernels, updating weights."""
    step_seconds: float = 0.01
    """That a step takes at least, however small its batch."""

    def speed(self, macs: float) -> float:
        """Return the images that it trains in a second."""
        return 1 / (_PER_MAC * macs / self.flops + 1 / self.images_per_second)


CPU = Machine("2 cores", MachineFacts(threads=2, memory_gib=16), 1.0e11, 20_000)
H100 = Machine(
    "H100",
    MachineFacts(device="cuda", name="H100", threads=16, memory_gib=80),
    8.0e13,
    30_000,
)
MACHINES = (CPU, H100)


@dataclass(frozen=True)
class Case:
    """Images to train on, and how long."""

    images: int
    """All, of which 70% are for training and 15% each for validation and test."""
    classes: int
    pixels: int
    minutes: float | None = None
    """A time limit; None for the preset's own length."""
    preset: PresetName = "balanced"
    greyscale: bool = False
    machines: tuple[Machine, ...] = MACHINES


CASES = (
    Case(50, 2, 300),
    Case(500, 5, 300),
    Case(1_000, 5, 300),
    Case(3_000, 5, 300, 15, machines=(CPU,)),
    Case(3_000, 5, 300),
    Case(3_000, 5, 300, preset="best"),
    Case(5_000, 100, 300),
    Case(50_000, 100, 300),
    Case(50_000, 100, 300, preset="best"),
    Case(1_200_000, 1_000, 300),
    Case(1_200_000, 1_000, 300, preset="best"),
    Case(60_000, 10, 32, 10),
    Case(60_000, 10, 32),
    Case(60_000, 10, 32, preset="best"),
    Case(100_000, 200, 64),
    Case(10_000, 10, 90),
    Case(10_000, 10, 97),
    Case(1_797, 10, 8, greyscale=True),
)


def facts_of(case: Case, machine: Machine) -> PlanFacts:
    """Return the facts of a case, with the assumed speed of every candidate."""
    held = round(0.15 * case.images)
    channels = 1 if case.greyscale else 3
    speeds = []
    for tier in tiers_for(case.pixels):
        macs = work(tier, image_side(tier, case.pixels), channels)
        speeds.append(Speed(candidate=tier.name, images_per_second=machine.speed(macs)))
    return PlanFacts(
        preset=case.preset,
        data=DataFacts(
            training_images=case.images - 2 * held,
            validation_images=held,
            test_images=held,
            classes=case.classes,
            median_side=case.pixels,
            greyscale=case.greyscale,
            mirror_symmetric=not case.greyscale,
            can_be_folded=True,
        ),
        machine=machine.facts,
        speeds=tuple(speeds),
    )


def settings_of(case: Case) -> dict[str, Any]:
    """Return what the user has set, by dotted key."""
    return {"training.time_limit": f"{case.minutes:g}m"} if case.minutes else {}


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        "| images, classes, pixels | time | machine | model, images | training | batch | "
        "augmentation | repeated |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for case in CASES:
        for machine in case.machines:
            yield _row(case, machine)


def _row(case: Case, machine: Machine) -> str:
    facts, user = facts_of(case, machine), settings_of(case)
    settings, decision = plan(facts, user).settings, draft_plan(facts, user)
    training = settings["training"]
    what = f"{case.images:,}, {case.classes:,}, {case.pixels}"
    time = f"{case.minutes:g} min" if case.minutes else f"`{case.preset}`"
    mixed = " + mixing" if training.get("cutmix") else ""
    cells = (
        what,
        time,
        machine.title,
        _model(settings),
        _long(decision, machine),
        f"{decision.batch}",
        f"`{settings['augmentation']['name']}`{mixed}",
        _describe_repeats(training),
    )
    return f"| {' | '.join(cells)} |"


def _describe_repeats(training: dict[str, Any]) -> str:
    if folds := training.get("folds"):
        return f"{folds} folds"
    return str(training.get("final_model", "no"))


def _model(settings: dict[str, Any]) -> str:
    model, side = settings["model"], settings["data"]["image_size"]
    depth = model["depth"]
    blocks = f"{depth} block{'' if depth == 1 else 's'}"
    patch = model["patch_embedding"].get("patch_size")
    kind = f", patches of {patch}" if patch else ""
    return f"{model['embed_dim']} wide, {blocks}{kind}, {side} px"


def steps_of(draft: Draft) -> int:
    """Return the updates of the weights in the first fit."""
    epochs = max(1.0, draft.length.epochs)
    return round(epochs * math.ceil(draft.length.images_seen / epochs / draft.batch))


def _long(decision: Draft, machine: Machine) -> str:
    """Return the length of the first fit, and how long all of them train."""
    fits = decision.fits
    steps = steps_of(decision)
    first = max(decision.length.seconds, steps * machine.step_seconds)
    seconds = first * sum(fits) / fits[0]
    epochs = _number(decision.length.epochs)
    return f"{epochs} epochs, {steps:,} steps, {duration(seconds)}"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004 - two digits


def main() -> None:
    """Read the arguments and print or update the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, nargs="?", help="page whose table is updated")
    page = parser.parse_args().page
    lines = "\n".join(table())
    if page is None:
        print(lines)
        return
    page.write_text(replace_table(page.read_text("utf-8"), TABLE, lines), "utf-8")


if __name__ == "__main__":
    main()
