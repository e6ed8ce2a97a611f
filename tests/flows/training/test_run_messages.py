"""The names that a person reads in the Prefect UI."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect import Task

from flows.training import run_messages, stages
from pipeline.config import RunConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": {"epochs": 20}}, "Train vit with linear for 20 epochs"),
        ({"training": {"time_limit": "20m"}}, "Train vit with linear for 20m"),
    ],
)
def test_the_training_task_says_what_is_trained_and_for_how_long(
    settings: dict[str, Any], words: str
) -> None:
    """Model, patch embedding and length stand in the task's name."""
    model = {"name": "vit", "patch_embedding": {"name": "linear"}}
    config = RunConfig.model_validate({"model": model, **settings})
    assert run_messages.train_name({"config": config}) == words


def test_the_data_task_names_the_folder_without_its_way() -> None:
    """A path's last part is enough; a built-in source has its own name."""
    folder = RunConfig.model_validate({"data": {"path": "/far/away/flowers"}})
    assert run_messages.read_name({"config": folder}) == "Read flowers"
    assert run_messages.read_name({"config": RunConfig()}) == "Read digits"


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
            {"ensemble": SimpleNamespace(calibrations=(None,) * 5)},
            "1,000 images, about 33 s",
        ),
    ],
)
def test_the_evaluation_says_how_many_images_every_model_predicts(
    parts: dict[str, Any], told: str
) -> None:
    """Folds predict their own images; each model of an ensemble predicts the test images."""
    data: Any = SimpleNamespace(counts={"train": 700, "validation": 100, "test": 200})
    known = {"images_per_second": 10.0, "precision": "float32", "probe": None}
    trained: Any = SimpleNamespace(**{**known, "folds": None, "ensemble": None, **parts})
    title = run_messages.evaluation_title(RunConfig(), data, trained)
    assert title == f"Evaluating on the test images ({told})"


def test_every_stage_has_a_name_of_its_own_and_a_description() -> None:
    """Each task is named by a function, and described by its docstring."""
    tasks: list[Task[..., Any]] = [
        stages.read_data,
        stages.decode_images,
        stages.train_model,
        stages.evaluate_model,
        stages.package_model,
        stages.register_model,
        stages.assign_aliases,
    ]
    assert all(callable(task.task_run_name) and task.description for task in tasks)
    registered = SimpleNamespace(name="flowers", version="3")
    assert (
        run_messages.assign_aliases_name({"registered": registered})
        == "Assign aliases of flowers, version 3"
    )
