"""What the stages of a run call themselves, on the terminal and in the Prefect UI."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.stages.context import Context, Reporting
from patchline.pipeline.stages.evaluate import EVALUATE
from patchline.pipeline.stages.lines import CLASSIFIER, ENCODER, Line


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"images_per_second": 1e3}, "300 images with validation, about 1 s"),
        (
            {"images_per_second": 16.0, "precision": "bfloat16"},
            "300 images with validation, about 10 s",
        ),
        ({"folds": object()}, "1,000 images with validation, about 33 s"),
        (
            {"folds": object(), "ensemble": SimpleNamespace(models=5)},
            "1,800 images with validation, about 60 s",
        ),
    ],
)
def test_the_evaluation_says_how_many_images_every_model_predicts(
    parts: dict[str, Any], told: str
) -> None:
    """Folds predict their own images; each model of an ensemble predicts the test images, too."""
    data = SimpleNamespace(counts={"train": 700, "validation": 100, "test": 200})
    known = {"images_per_second": 10.0, "precision": "float32"}
    nothing = dict.fromkeys(("probe", "folds", "refit", "ensemble"))
    trained = SimpleNamespace(**{**known, **nothing, **parts})
    inputs: Any = SimpleNamespace(data=data, trained=trained)
    silent = Reporting(*[lambda *_: None] * 4)
    context = Context(RunConfig(), StageMemory(Path("work")), silent, Path("work"))
    title = EVALUATE.title(context, inputs)
    assert title == f"Evaluating on the test images ({told})"


@pytest.mark.parametrize("line", [CLASSIFIER, ENCODER], ids=["classifier", "encoder"])
def test_every_stage_says_what_it_is(line: Line) -> None:
    """Each has a name, a task of its own, a description, and a worker that is there."""
    assert len({stage.task for stage in line.stages}) == len(line.stages)
    for stage in line.stages:
        assert stage.summary.endswith((".", ":"))
        assert stage.worker is None or importlib.util.find_spec(f"{stage.worker.module}.__main__")
