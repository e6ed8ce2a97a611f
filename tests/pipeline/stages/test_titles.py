"""What the evaluation says it will do, on the terminal and in the Prefect UI."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.stages.evaluate import Evaluate
from patchline.pipeline.stages.stage import Context, Reporting
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory

_FIVE = SimpleNamespace(models=5)


@pytest.mark.parametrize(
    ("trained", "symmetric", "told"),
    [
        ({}, False, "300 images with validation, about 10 s"),
        ({}, True, "300 images with validation, at most 300 mirrored, about 20 s"),
        ({"images_per_second": 1e3}, False, "300 images with validation, about 1 s"),
        ({"folds": object()}, False, "1,000 images with validation, about 33 s"),
        (
            {"folds": object(), "ensemble": _FIVE},
            False,
            "1,800 images with validation, about 60 s",
        ),
    ],
)
def test_the_evaluation_counts_the_images_of_every_model(
    trained: dict[str, Any], symmetric: bool, told: str
) -> None:
    """Folds predict their own images; each model of an ensemble predicts the test images, too.

    With test-time averaging, images are predicted twice, if their mirror images may be.
    """
    mirror = SimpleNamespace(answer="symmetric", is_symmetric=symmetric)
    counts = {"train": 700, "validation": 100, "test": 200}
    nothing = dict.fromkeys(("probe", "folds", "refit", "ensemble"))
    known = {"images_per_second": 10.0, "precision": "float32", **nothing}
    data: Any = SimpleNamespace(counts=counts, mirror=mirror)
    result: Any = SimpleNamespace(**{**known, **trained})
    unused: Any = None
    averaging = {"test_time_averaging": "auto" if symmetric else "off"}
    model = {"name": "vit", "test_time_flip": False}
    config = RunConfig.model_validate({"model": model, "evaluation": averaging})
    silent = Reporting(*[lambda *_: None] * 4)
    context = Context(config, StageMemory(Path("work")), silent, Path("work"))
    stage = Evaluate(context, result, data, unused, unused)
    assert stage.title() == f"Evaluating on the test images ({told})"
