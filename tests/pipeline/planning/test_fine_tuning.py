"""The plan for published weights: the head alone unless there are images and time for more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import DataFacts, MachineFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.measuring_job import Measurement
from patchline.pipeline.planning.published import FEATURES
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.presets import PresetName
from patchline.pipeline.training.initial_weights.starting_point import with_initial_weights
from tests.pipeline.training.initial_weights.test_starting_point import FOUND as FROM_FILE


def made(speed: float, images: int = 3000, classes: int = 5, **asked: Any) -> Plan:
    """Return the plan of a balanced run, half an hour."""
    data = DataFacts(
        training_images=images, validation_images=images // 10, test_images=images // 10,
        classes=classes, median_side=224,
    )  # fmt: skip
    speeds = (Speed(candidate=FEATURES, images_per_second=speed),) if speed else ()
    settings = {key.replace("__", "."): value for key, value in asked.items()}
    facts = PlanFacts(preset="balanced", data=data, speeds=speeds)
    return plan(facts, settings, "published")


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


def test_more_than_the_head_has_to_be_worth_its_time() -> None:
    """The slower the machine, the worse a head is enough; whoever sets the length has decided."""
    accepted = []
    for speed in (400.0, 50.0, 10.0):
        planned = made(speed, images=300)
        error = planned.settings["record"]["accepted_error"]
        assert f"the head's validation error is {error:.1%} or less" in planned.reasons[1]
        assert f"if its error is above {error:.1%}" in planned.summary[1]
        accepted.append(error)
    assert 0 < accepted[0] < accepted[1] < accepted[2] < 0.3
    best = plan(made(10.0, images=300).facts.model_copy(update={"preset": "best"}), {}, "published")
    assert best.settings["record"]["accepted_error"] == pytest.approx(accepted[2] / 8, rel=0.2)
    for own in (
        {"training__time_limit": "20m"},
        {"training__epochs": 10},
        {"training__trainable": "last_blocks"},
        {"training__processes": 2},
    ):
        assert "accepted_error" not in made(50.0, images=300, **own).settings.get("record", {})
    assert "record" not in made(400.0, 40, training__final_model="ensemble").settings


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
    planned = plan(facts, {"model.name": model}, "published")
    assert planned.settings["training"]["trainable"] == trainable
    why = "training all 632 million weights takes 12 GiB besides the images of a step"
    assert any(why in each for each in planned.reasons) is (gib == 16)


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
    refitted = made(400.0, training__final_model="refit").settings["training"]["trainable"]
    assert refitted == "last_blocks"
    once = made(400.0, training__final_model="best")
    assert once.settings["training"]["trainable"] == "head_then_all"


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
    assert longer.settings["training"]["epochs"] == 10
    assert "for 16h, at most 10 epochs" in longer.summary[1]
    both = made(2.0, training__time_limit="16h", training__epochs=3)
    assert "epochs" not in both.settings["training"]
    assert "for 16h, at most 3 epochs" in both.summary[1]


@pytest.mark.parametrize(
    "needs",
    [
        {"training__final_model": "ensemble", "training__folds": 5},
        {"training__teacher": "flowers@champion"},
    ],
)
def test_what_needs_all_weights_gets_them(needs: dict[str, Any]) -> None:
    """A head alone is one fit to labels: no members, no teacher."""
    plan = made(10.0, **needs)
    assert plan.settings["training"]["trainable"] == "all"
    assert "needs a training run of all weights" in plan.reasons[0]


def test_processes_that_share_no_folder_do_not_train_the_last_blocks() -> None:
    """On an object store, those of one machine do, and those of several do not."""
    facts = made(400.0, images=40).facts
    for machines, planned in ((1, "last_blocks"), (2, "head")):
        machine = facts.machine.model_copy(update={"cache_gib": 100.0, "machines": machines})
        several = facts.model_copy(update={"machine": machine})
        settings = plan(several, {"training.processes": 2}, "published").settings
        assert settings["training"]["trainable"] == planned


FOUND = FROM_FILE.model_copy(
    update={
        "reference": "photos/3",
        "kind": "version",
        "layout": "Patchline",
        "image_size": 16,
        "settings": {
            "name": "vit",
            "size": "micro",
            "embed_dim": 48,
            "depth": 2,
            "num_heads": 4,
            "mlp_dim": 96,
            "patch_embedding": {"name": "conv", "patch_size": 4},
        },
    }
)


def test_an_encoder_is_trained_for_the_whole_length_with_a_low_rate(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the images, but no class; and its plan is another one in the memory.

    From a classifier the preset decides on a third of the length, and on the recipe.
    """
    model = {"init": "photos@champion"}
    asked = build_config(str(photos), preset_name="quick", flags={"model": model})
    data = ingest(asked, tmp_path)
    speed = Measurement(speeds=(Speed(candidate="own", images_per_second=900.0),))
    monkeypatch.setattr(planner, "measure_apart", lambda *_: speed)
    made: list[Plan] = []
    configs: list[RunConfig] = []
    starts = [FOUND.model_copy(update={"classes": classes}) for classes in ((), ("cat",))]
    for found in starts:
        config = with_initial_weights(asked, found)
        made.append(planner.plan_run(config, data, tmp_path, lambda _: None, start=found))
        configs.append(planner.with_plan(config, made[-1]))
    encoder, warm = configs
    assert (encoder.optimizer.learning_rate, encoder.optimizer.name) == (1e-3, "adamw")
    assert (warm.optimizer.name, warm.training.trainable) == ("muon", "all")
    assert (warm.model.settings["embed_dim"], warm.data.image_size) == (48, 16)
    assert made[0].reasons[0].startswith("from an encoder: learning rate 0.001")
    assert made[1].reasons[0].startswith("warm start:")
    epochs = [each.training.epochs_without_limit for each in configs]
    assert epochs[0] == pytest.approx(3 * epochs[1], abs=2)
    keys = [planner.ingredients(encoder, data, start=found) for found in starts]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("preset", ["quick", "balanced"])
@pytest.mark.parametrize("images", [300, 4_650, 40_000])
@pytest.mark.parametrize("rate", [40.0, 3_000.0])
def test_a_third_of_the_length_with_strong_augmentation(
    preset: PresetName, images: int, rate: float
) -> None:
    """Whether epochs or time limit it; the weights have seen nearly all images many times."""
    facts = PlanFacts(
        preset=preset,
        data=DataFacts(training_images=images, classes=10, median_side=32),
        speeds=(Speed(candidate="own", images_per_second=rate),),
    )
    follows = {f"model.{key}": value for key, value in FOUND.settings.items()}
    cold = plan(facts, follows)
    made = plan(facts, follows, "classifier")
    numbers = []
    for each in (made, cold):
        training = each.settings["training"]
        if "epochs" in training:
            numbers.append(training["epochs"] * images)
        else:
            steps = each.settings["record"]["step_plan"][-1][2]
            numbers.append(steps * training["batch_size"])
    share = numbers[0] / numbers[1]
    assert 0.9 / 3 <= share <= 1.1 / 3  # long ones are rounded to whole epochs
    if rate > 40 or images < 1_000:
        assert made.settings["augmentation"]["name"] in ("trivialaugment", "randaugment")
        assert any("times more: strong augmentation" in each for each in made.reasons)
