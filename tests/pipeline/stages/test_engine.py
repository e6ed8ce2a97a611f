"""A stage is one file and one entry in a line; the engine does the rest."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.lines import CLASSIFIER, ENCODER, Pipeline
from patchline.pipeline.stages.stage import Context, Reporting, Stage
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


class Flour(FrozenModel):
    """Left by the mill."""

    grams: int


class Bread(FrozenModel):
    """Left by the oven."""

    file: Path


class Mill(Stage[Flour]):
    """Leaves flour."""

    name, task, output = "mill", "Mill", Flour
    shared = at_once = True

    def title(self) -> str:
        return "Milling"

    def key(self) -> dict[str, str]:
        return {"seed": str(self.config.seed)}

    def folder(self, result: Flour | None) -> Path:
        return self.context.workspace / "flour"

    def compute(self) -> Flour:
        self.context.reporting.note("milled")
        return Flour(grams=500 + self.config.seed)

    def after(self, result: Flour) -> None:
        changes = {"name": f"bread-of-{result.grams}", "seed": 99}  # which its own key depends on
        self.context.config = self.config.model_copy(update=changes)


@dataclass(frozen=True)
class Bake(Stage[Bread]):
    """Leaves bread."""

    name, task, output = "bake", "Bake", Bread
    worker = Worker("patchline.pipeline.packaging", Flour, Bread)
    rehearsal = "Warming the oven"

    flour: Flour
    run: TrackedRun

    def title(self) -> str:
        return f"Baking {self.flour.grams} g for {self.config.name}"

    def key(self) -> dict[str, str]:
        return {"grams": str(self.flour.grams)}

    def folder(self, result: Bread | None) -> Path:
        return self.run.folder / "bread"

    def compute(self) -> Bread:
        self.context.reporting.note("baked")
        file = self.folder(None) / "loaf"
        file.parent.mkdir()
        file.write_text(f"{self.flour.grams} g")
        return Bread(file=file)

    def rehearse(self) -> Bread:
        return Bread(file=Path("crumb"))

    def log(self, result: Bread, run: TrackedRun) -> None:
        self.context.reporting.note(f"logged {result.file.name} in {run.run_id}")


LINE = Pipeline((Mill, Bake))


def bake(tmp_path: Path, name: str, seed: int = 0, **context: Any) -> tuple[list[str], Context]:
    """Run the line in a run of its own; return what was told."""
    told: list[str] = []
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    reporting = Reporting(told.append, told.append, lambda *_: None, lambda _: None)
    config, work = RunConfig(seed=seed), tmp_path / "work"
    run = Context(config, StageMemory(work), reporting, work, **context)
    engine.run_stages(LINE.before_run, run)
    if run.rehearses:
        run.put(TrackedRun("rehearsal", "0", folder))
    else:
        engine.enter(TrackedRun(name, "0", folder), LINE.before_run, run)
    engine.run_stages(LINE.in_run, run)
    return told, run


@pytest.fixture(autouse=True)
def _no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """These stages have no MLflow run; tags are tested with real ones."""
    monkeypatch.setattr(
        "patchline.pipeline.workspace.tracking.tracked_run.set_tags", lambda *_: None
    )


def test_a_stage_is_computed_once_for_the_same_inputs(tmp_path: Path) -> None:
    """Recalled results are said, logged and followed like computed ones; others are computed.

    A run that was interrupted finds its own results, and says so.
    """
    told, first = bake(tmp_path, "one")
    titles = ["Milling", "Baking 500 g for bread-of-500"]
    assert told == [titles[0], "milled", titles[1], "baked", "logged loaf in one"]
    assert set(first.seconds) == {"mill", "bake"}
    again, second = bake(tmp_path, "two")
    known = "nothing changed since run one: its result is used again"
    assert again == [titles[0], known, titles[1], known, "logged loaf in two"]
    assert second.get(Bread).file == tmp_path / "runs/two/bread/loaf"
    assert second.memory.reused == {"mill": "one", "bake": "one"}
    assert "baked" in bake(tmp_path, "three", seed=7)[0]
    told, resumed = bake(tmp_path, "one")
    assert "done before the interruption" in told
    assert "baked" not in told
    assert "bake" not in resumed.memory.reused


class Sometimes(Mill):
    @staticmethod
    def applies(config: RunConfig) -> bool:
        return config.seed == 1


class Homeless(Mill):
    folder = Stage.folder


def test_a_rehearsal_computes_little_and_logs_nothing(tmp_path: Path) -> None:
    """It says what it does instead."""
    told, _ = bake(tmp_path, "one", rehearses=True)
    assert told == ["Milling", "milled", "Warming the oven"]


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ((Bake,), "The stage bake reads a Flour, which no stage of every run leaves before it"),
        ((Sometimes, Bake), "no stage of every run leaves before it"),
        ((Mill, Mill, Bake), "Two stages have one name: mill, mill, bake"),
        ((Homeless,), "The stage mill has a key, but no folder"),
    ],
)
def test_a_line_that_cannot_run_cannot_be_put_together(stages: Any, problem: str) -> None:
    """What no earlier stage leaves is an error before any run, with the stage's name."""
    with pytest.raises(TypeError, match=problem):
        Pipeline(stages)
    assert list(engine.workers(LINE.stages, RunConfig())) == [Bake.worker]


def test_a_stage_leaves_what_it_has_declared(tmp_path: Path) -> None:
    """Another class is an error of the stage, not of a later one."""

    class Wrong(Mill):
        def compute(self) -> Any:
            return Bread(file=Path("x"))

    run = Context(RunConfig(), StageMemory(tmp_path), Reporting(*[lambda *_: None] * 4), tmp_path)
    with pytest.raises(TypeError, match="The stage mill does not leave a Bread"):
        engine.run_stages((Wrong,), run)


@pytest.mark.parametrize("line", [CLASSIFIER, ENCODER], ids=["classifier", "encoder"])
def test_every_stage_says_what_it_is(line: Pipeline) -> None:
    """Each has a name, a task of its own, a description, and a worker that is there."""
    assert len({stage.task for stage in line.stages}) == len(line.stages)
    for stage in line.stages:
        assert stage.summary().endswith((".", ":"))
        assert stage.worker is None or importlib.util.find_spec(f"{stage.worker.module}.__main__")
