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
from patchline.pipeline.stages.promote import PROMOTE
from patchline.pipeline.stages.read import READ
from patchline.pipeline.stages.train import TRAIN

NOTHING: Any = None


def context(config: RunConfig) -> Context:
    """Return the context of a run that has not begun."""
    silent = Reporting(*[lambda *_: None] * 4)
    return Context(config, StageMemory(Path("work")), silent, Path("work"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": {"epochs": 20}}, "vit with linear for 20 epochs"),
        ({"training": {"time_limit": "20m"}}, "vit with linear for 20m"),
    ],
)
def test_the_training_task_says_what_is_trained_and_for_how_long(
    settings: dict[str, Any], words: str
) -> None:
    """Model, patch embedding and length stand in the task's name."""
    model = {"name": "vit", "patch_embedding": {"name": "linear"}}
    config = RunConfig.model_validate({"model": model, **settings})
    assert TRAIN.task_run(context(config), NOTHING) == f"Train {words}"
    assert TRAIN.title(context(config), NOTHING) == f"Training {words}"


def test_the_data_task_names_the_folder_without_its_way() -> None:
    """A path's last part is enough; a built-in source has its own name."""
    folder = RunConfig.model_validate({"data": {"path": "/far/away/flowers"}})
    assert READ.task_run(context(folder), NOTHING) == "Read flowers"
    assert READ.task_run(context(RunConfig()), NOTHING) == "Read digits"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"images_per_second": 1e3}, "300 images with validation, about 1 s"),
        ({}, "300 images with validation, about 10 s"),
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
    data: Any = SimpleNamespace(counts={"train": 700, "validation": 100, "test": 200})
    known = {"images_per_second": 10.0, "precision": "float32", "probe": None}
    trained: Any = SimpleNamespace(**{**known, "folds": None, "ensemble": None, **parts})
    inputs: Any = SimpleNamespace(data=data, trained=trained)
    title = EVALUATE.title(context(RunConfig()), inputs)
    assert title == f"Evaluating on the test images ({told})"


@pytest.mark.parametrize(
    ("answer", "mirrored"), [("symmetric", ", at most 300 mirrored"), ("asymmetric", "")]
)
def test_the_evaluation_counts_mirror_images(answer: str, mirrored: str) -> None:
    """With test-time averaging, images are predicted twice, if their mirror images may be."""
    mirror = SimpleNamespace(answer=answer, is_symmetric=answer == "symmetric")
    counts = {"train": 700, "validation": 100, "test": 200}
    nothing = dict.fromkeys(("probe", "folds", "refit", "ensemble"))
    trained = SimpleNamespace(images_per_second=1.0, precision="float32", **nothing)
    inputs: Any = SimpleNamespace(
        data=SimpleNamespace(counts=counts, mirror=mirror), trained=trained
    )
    settings = {
        "model": {"name": "vit", "test_time_flip": False},
        "evaluation": {"test_time_averaging": "auto"},
    }
    title = EVALUATE.title(context(RunConfig.model_validate(settings)), inputs)
    seconds = 200 if mirrored else 100
    told = f"300 images with validation{mirrored}, about {seconds} s"
    assert title == f"Evaluating on the test images ({told})"


@pytest.mark.parametrize("line", [CLASSIFIER, ENCODER], ids=["classifier", "encoder"])
def test_every_stage_says_what_it_is(line: Line) -> None:
    """Each has a name, a task of its own, a description, and a worker that is there."""
    assert len({stage.task for stage in line.stages}) == len(line.stages)
    for stage in line.stages:
        assert stage.summary.endswith((".", ":"))
        assert stage.worker is None or importlib.util.find_spec(f"{stage.worker.module}.__main__")


def test_the_task_of_the_aliases_names_the_version() -> None:
    """The name and the version stand in the task's name."""
    inputs: Any = SimpleNamespace(registered=SimpleNamespace(name="flowers", version="3"))
    words = "Assign aliases of flowers, version 3"
    assert PROMOTE.task_run(context(RunConfig()), inputs) == words
