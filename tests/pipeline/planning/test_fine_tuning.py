"""The plan for published weights: the head alone unless there are images and time for more."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline.planning.facts import DataFacts, MachineFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.fine_tuning import FEATURES, fine_tuning_plan


def made(speed: float, images: int = 3000, classes: int = 5, **asked: Any) -> Plan:
    """Return the plan of a balanced run, half an hour."""
    data = DataFacts(
        training_images=images, validation_images=images // 10, test_images=images // 10,
        classes=classes, median_side=224,
    )  # fmt: skip
    speeds = (Speed(candidate=FEATURES, images_per_second=speed),) if speed else ()
    settings = {key.replace("__", "."): value for key, value in asked.items()}
    return fine_tuning_plan(PlanFacts(preset="balanced", data=data, speeds=speeds), settings)


def test_a_fast_machine_trains_all_weights_as_long_as_the_time_allows() -> None:
    """A GPU trains for all ten epochs, a slower one for as many as fit."""
    fast, slower = made(400.0), made(50.0, training__last_blocks=4, model__name="timm")
    assert fast.settings["training"] == {"epochs": 10, "batch_size": 32} | {
        "trainable": "head_then_all"
    }
    assert fast.settings["optimizer"]["layer_decay"] == 0.75
    ((_, _, steps),) = slower.settings["record"]["step_plan"]
    assert 3 <= steps * 32 / 3_000 < 10
    assert "kept as far as the validation images allow" in fast.reasons[1]
    blocks = made(50.0)
    assert blocks.settings["training"]["trainable"] == "last_blocks"
    assert blocks.settings["optimizer"]["learning_rate"] == 2e-4


@pytest.mark.parametrize(
    ("gib", "model", "trainable"),
    [(80, "vit", "head_then_all"), (16, "vit", "last_blocks"), (16, "timm", "head")],
)
def test_a_large_model_on_a_small_gpu_trains_what_fits(
    gib: float, model: str, trainable: str
) -> None:
    """Weights, gradients, moments and average of a ViT-H take 12 GiB; the reason says so."""
    facts = made(4_000.0).facts.model_copy(
        update={
            "machine": MachineFacts(device="cuda", memory_gib=gib),
            "parameters": 632_000_000,
        }
    )
    plan = fine_tuning_plan(facts, {"model.name": model})
    assert plan.settings["training"]["trainable"] == trainable
    why = "training all 632 million weights takes 12 GiB besides the images of a step"
    assert any(why in each for each in plan.reasons) is (gib == 16)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"training__mixup": 0.2}, "training.mixup is 0.2, and they are trained on stored tokens"),
        ({"training__compile": True}, "training.compile is true"),
        ({"model__name": "timm"}, "those of a timm model cannot be trained alone"),
        (
            {"training__folds": 5, "training__early_stopping": 3},
            "training.folds is 5 and training.early_stopping is 3, and they",
        ),
    ],
)
@pytest.mark.parametrize("speed", [400.0, 50.0])
def test_all_settings_that_rule_the_last_blocks_out_are_named(
    other: dict[str, Any], why: str, speed: float
) -> None:
    """Also where all weights are trained instead, for a part of their epochs."""
    images = 40 if speed == 400.0 else 3_000
    assert made(speed, images).settings["training"]["trainable"] == "last_blocks"
    plan = made(speed, images, **other)
    assert plan.settings["training"]["trainable"] in ("head", "head_then_all")
    assert plan.reasons[-1].startswith("the last blocks are not trained")
    assert why in plan.reasons[-1]
    for elsewhere in (made(400.0, 3_000, **other), made(400.0, 20, **other)):
        assert "last blocks" not in elsewhere.text()  # they would not be planned without it either


@pytest.mark.parametrize("speed", [3.0, 12.0, 100.0])
def test_more_images_are_not_trained_less(speed: float) -> None:
    """Neither for fewer updates nor with the head alone, while there is time for their features."""
    updates = []
    for images in (60, 100, 350, 700, 1_000, 1_500):
        plan = made(speed, images=images, classes=2)
        training = plan.settings["training"]
        assert training["trainable"] in ("head_then_all", "last_blocks"), images
        updates.append(int(plan.reasons[1].partition(" updates)")[0].rpartition("(")[2]))
    assert updates == sorted(updates)
    assert updates[0] >= 15


def test_folds_fit_the_head_alone_and_a_refit_repeats_the_last_blocks() -> None:
    """How far all weights go is decided by one validation split, which both do not have."""
    plan = made(400.0, training__folds=5)
    assert plan.settings == {"training": {"trainable": "head"}}
    assert "only the head is fitted unless training.trainable is set" in plan.reasons[1]
    refitted = made(400.0, training__refit=True).settings["training"]["trainable"]
    assert refitted == "last_blocks"
    assert made(400.0, training__refit=False).settings["training"]["trainable"] == "head_then_all"


def test_the_time_limit_is_the_time_for_all_weights() -> None:
    """A limit of the user replaces the preset's half hour, and stays.

    If the measuring process dies, the plan takes the choice that costs least.
    """
    for speed in (2.0, 0.0):
        assert made(speed).settings == {"training": {"trainable": "head"}}
    some = made(2.0, training__time_limit="3h")
    assert some.settings["training"]["trainable"] == "last_blocks"
    longer = made(2.0, training__time_limit="16h")
    assert longer.settings["training"]["trainable"] == "head_then_all"
    assert "time_limit" not in longer.settings["training"]


@pytest.mark.parametrize(
    "needs",
    [
        {"training__average_last": 3},
        {"training__ensemble": True, "training__folds": 5},
        {"training__teacher": "flowers@champion"},
        {"record__extends": "132e24fd"},
    ],
)
def test_what_needs_all_weights_gets_them(needs: dict[str, Any]) -> None:
    """A head alone is one fit to labels: no validations to average, no members, no teacher."""
    plan = made(10.0, **needs)
    assert plan.settings["training"]["trainable"] == "all"
    assert "needs a training run of all weights" in plan.reasons[0]


def test_processes_that_share_no_folder_do_not_train_the_last_blocks() -> None:
    """On an object store, those of one machine do, and those of several do not."""
    facts = made(400.0, images=40).facts
    for machines, planned in ((1, "last_blocks"), (2, "head")):
        machine = facts.machine.model_copy(update={"cache_gib": 100.0, "machines": machines})
        several = facts.model_copy(update={"machine": machine})
        plan = fine_tuning_plan(several, {"training.processes": 2})
        assert plan.settings["training"]["trainable"] == planned
