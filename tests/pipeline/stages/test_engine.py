"""A stage is one file and one entry in a line: what does not fit is an error before any run.

`tests/flows/training/test_added_stage.py` has what the engine does for a stage that is added.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.context import Context, Reporting
from patchline.pipeline.stages.lines import CLASSIFIER, ENCODER, Line
from patchline.pipeline.stages.stage import Stage


class Flour(FrozenModel):
    """Left by the mill."""


class Bread(FrozenModel):
    """Left by the oven."""


@dataclass(frozen=True)
class Nothing:
    """The mill reads nothing."""


@dataclass(frozen=True)
class BakeInputs:
    """What is baked."""

    flour: Flour


class Mill(Stage[Nothing, Flour]):
    """Leaves flour."""

    name, task, reads, leaves = "mill", "Mill", Nothing, Flour

    def title(self, context: Context, inputs: Nothing) -> str:
        return "Milling"

    def compute(self, context: Context, inputs: Nothing) -> Any:
        return Bread()  # the fault of a stage that leaves another class


class Sometimes(Mill):
    def applies(self, config: RunConfig) -> bool:
        return config.seed == 1


class Homeless(Mill):
    def key(self, context: Context, inputs: Nothing) -> dict[str, str]:
        return {}


class Bake(Stage[BakeInputs, Bread]):
    """Leaves bread."""

    name, task, reads, leaves = "bake", "Bake", BakeInputs, Bread

    def title(self, context: Context, inputs: BakeInputs) -> str:
        return "Baking"

    def compute(self, context: Context, inputs: BakeInputs) -> Bread:
        return Bread()


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ((Bake(),), "The stage bake reads a Flour, which no stage of every run leaves before it"),
        ((Sometimes(), Bake()), "no stage of every run leaves before it"),
        ((Mill(), Mill(), Bake()), "Two stages have one name: mill, mill, bake"),
        ((Homeless(),), "The stage mill has a key, but no folder"),
    ],
)
def test_a_line_that_cannot_run_cannot_be_put_together(stages: Any, problem: str) -> None:
    """What no earlier stage leaves is an error before any run, with the stage's name."""
    with pytest.raises(TypeError, match=problem):
        Line(stages)


def test_a_stage_leaves_what_it_has_declared(tmp_path: Path) -> None:
    """Another class is an error of the stage, not of a later one."""
    run = Context(RunConfig(), StageMemory(tmp_path), Reporting(*[lambda *_: None] * 4), tmp_path)
    with pytest.raises(TypeError, match="The stage mill does not leave a Bread"):
        engine.run_stages((Mill(),), run)


@pytest.mark.parametrize("line", [CLASSIFIER, ENCODER], ids=["classifier", "encoder"])
def test_every_stage_says_what_it_is(line: Line) -> None:
    """Each has a name, a task of its own, a description, and a worker that is there."""
    assert len({stage.task for stage in line.stages}) == len(line.stages)
    for stage in line.stages:
        assert stage.summary.endswith((".", ":"))
        assert stage.worker is None or importlib.util.find_spec(f"{stage.worker.module}.__main__")
