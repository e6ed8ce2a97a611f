"""What the evaluation says it will do, on the terminal and in the Prefect UI."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation import cost
from patchline.pipeline.stages.evaluate import Evaluate
from patchline.pipeline.stages.stage import Context, Reporting
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory

_FIVE = SimpleNamespace(models=5)
_BLOCKS = SimpleNamespace(blocks=4)


@pytest.mark.parametrize(
    ("trained", "told"),
    [
        ({}, "300 images with validation, about 15 s"),
        ({"images_per_second": 1e3}, "300 images with validation, about 5 s"),
        ({"folds": object()}, "1,000 images with validation, about 38 s"),
        (
            {"folds": object(), "ensemble": _FIVE},
            "1,800 images with validation, about 65 s",
        ),
        # from tokens, images/s are those of 4 of 12 blocks
        ({"fine_tuning": _BLOCKS}, "300 images with validation, about 35 s"),
    ],
)
def test_the_evaluation_counts_the_images_of_every_model(
    trained: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folds predict their own images; each model of an ensemble predicts the test images, too."""
    counts = {"train": 700, "validation": 100, "test": 200}
    monkeypatch.setattr(cost, "slowdown", lambda: 1.0)
    nothing = dict.fromkeys(("probe", "folds", "refit", "ensemble", "fine_tuning"))
    known = {"images_per_second": 10.0, "precision": "float32", "parameters": 0, **nothing}
    data: Any = SimpleNamespace(counts=counts)
    result: Any = SimpleNamespace(**{**known, **trained})
    unused: Any = None
    model = {"name": "vit", "test_time_flip": False}
    config = RunConfig.model_validate({"model": model, "evaluation": {"explanations": False}})
    silent = Reporting(*[lambda *_: None] * 4)
    context = Context(config, StageMemory(Path("work")), silent, Path("work"))
    stage = Evaluate(context, result, data, unused, unused)
    assert stage.title() == f"Evaluating on the test images ({told})"
