"""A plan fits the data, the machine and the time, and never changes what the user has set."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.config_files import merge_settings, validate_config
from patchline.pipeline.planning.draft import draft_plan
from patchline.pipeline.planning.facts import DataFacts, MachineFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.planner import with_plan
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.presets import PRESETS
from patchline.pipeline.training.config import FULL_SIZE_FROM
from patchline.plugin_api import DataTraits

FIFTEEN_MINUTES = {"training.time_limit": "15m"}


def facts(**changes: Any) -> PlanFacts:
    """Return the facts of CIFAR-10 on two slow cores, with changes."""
    data = {"training_images": 42_500, "classes": 10, "median_side": 32}
    machine: dict[str, Any] = {"threads": 2}
    for key, value in changes.items():
        if key in DataFacts.model_fields:
            data[key] = value
        elif key in MachineFacts.model_fields:
            machine[key] = value
    rate = changes.get("rate")
    return PlanFacts(
        preset=changes.get("preset", "balanced"),
        data=DataFacts(**data),
        machine=MachineFacts(**machine),
        speeds=(Speed(candidate="small", images_per_second=rate),) if rate else (),
    )


def whole(made: Plan, user: dict[str, Any] | None = None) -> RunConfig:
    """Return the config that a plan leads to, resolved for its images."""
    settings: dict[str, Any] = {}
    for key, value in (user or {}).items():
        nested: dict[str, Any] = {key.split(".")[-1]: value}
        for part in reversed(key.split(".")[:-1]):
            nested = {part: nested}
        settings = merge_settings(settings, nested)
    config = with_plan(validate_config(settings), made)
    side = config.data.image_size or 32
    data = made.facts.data
    channels = 1 if data.greyscale else 3
    return resolve_settings(config, DataTraits(channels, side, side, data.classes, True))


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_plan_is_a_valid_config(preset: str) -> None:
    """Whatever the images, classes, cores and time, the settings are accepted.

    The strongest augmentation comes with mixing, and only with it.
    """
    images, sides = (3, 40, 1_800, 50_000, 1_300_000), (1, 8, 13, 28, 32, 64, 96, 300, 4_000)
    limits: tuple[str | None, ...] = (None, "10s", "15m", "24h")
    for number, values in enumerate(product(images, sides, limits, (1, 64))):
        count, side, limit, threads = values
        grey, classes = side % 2 == 0, min(count, 1_000) if side > 8 else 2
        user = {"training.time_limit": limit} if limit else {}
        given = facts(
            preset=preset,
            training_images=count,
            median_side=side,
            classes=classes,
            threads=threads,
            greyscale=grey,
        )
        made = plan(given, user)
        assert made.settings["data"]["image_size"] <= max(8, side)
        strongest = made.settings["augmentation"]["name"] == "randaugment"
        assert strongest is ("cutmix" in made.settings["training"])
        if number % 101:  # checking all settings of all plans would take minutes
            continue
        config = whole(made, user)
        assert config.data.image_size is not None
        assert config.data.image_size <= max(8, side)
        assert config.training.batch_size <= max(16, count)
        assert config.training.time_limit == limit


@pytest.mark.parametrize(
    ("repeated", "fits"),
    [
        ({"training.folds": 5}, 6),
        ({"training.folds": 5, "training.final_model": "ensemble"}, 5),
        ({"training.final_model": "refit"}, 2),
    ],
)
def test_fits_of_one_run_share_the_time(repeated: dict[str, Any], fits: int) -> None:
    """The plan says how many there are."""
    asked = {"training.time_limit": "24h", **repeated}
    made = plan(facts(rate=1_000.0, validation_images=7_500), asked)
    assert any(f"for each of {fits} fits" in reason for reason in made.reasons)


def test_of_epochs_and_a_time_limit_the_plan_takes_what_ends_first() -> None:
    """The batch and the recipe are those of as many epochs as there will be."""
    for limit, ends in (("24h", "3 epochs (training.epochs) end before"), ("10s", "10s, incl")):
        made = plan(facts(rate=900.0), {"training.time_limit": limit, "training.epochs": 3})
        assert any(ends in reason for reason in made.reasons), made.reasons
    alone = plan(facts(rate=900.0), {"training.epochs": 3}).settings
    assert (
        plan(facts(rate=900.0), {"training.time_limit": "24h", "training.epochs": 3}).settings
        == alone
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("side", "setting"), [(32, "mirror_equivariant"), (512, "test_time_flip")])
def test_mirror_images_are_predicted_alike_where_that_keeps_the_class(
    side: int, setting: str, *, symmetric: bool
) -> None:
    """By the filters for small images, by averaging for photographs; the plan says which."""
    given = facts(median_side=side, mirror_symmetric=symmetric)
    made = plan(given, FIFTEEN_MINUTES)
    model = whole(made).model
    found = {
        "mirror_equivariant": model.patch_embedding.settings["mirror_equivariant"],
        "test_time_flip": model.settings["test_time_flip"],
    }
    assert found == {each: symmetric and each == setting for each in found}
    assert any(f"({setting})" in reason for reason in made.reasons) is symmetric
    own = {**FIFTEEN_MINUTES, "augmentation.name": "none"}
    model = whole(plan(given, own), own).model
    assert not model.settings["test_time_flip"]
    assert not model.patch_embedding.settings["mirror_equivariant"]


def test_photographs_with_several_labels_are_not_cropped() -> None:
    """A quarter of an image may lack what a label names; otherwise the plan is the same."""
    photographs = {"median_side": 400, "training_images": 3_000}
    made = [
        plan(facts(**photographs, labels_per_image=labels), {"training.epochs": 40})
        for labels in (None, 1.5)
    ]
    assert whole(made[0]).augmentation.name == "resized_crop"
    assert whole(made[1]).augmentation.name == "trivialaugment"
    assert any("and no crops, which may lack what a label names" in r for r in made[1].reasons)
    assert whole(made[0]).model == whole(made[1]).model


@pytest.mark.parametrize(
    "user",
    [
        {"optimizer.name": "sgd", "optimizer.momentum": 0.5},
        {"optimizer.learning_rate": 0.007},
        {"model.size": "mini"},
        {"model.embed_dim": 100},
        {"model.num_heads": 5},
        {"model.name": "rope_vit", "model.depth": 3},
        {"model.patch_embedding.patch_size": 4},
        {"augmentation.rotation": 3.0},
        {"optimizer.weight_decay": 0.33, "optimizer.schedule": "wsd"},
        {"training.epochs": 7, "training.batch_size": 20},
        {"training.ema_decay": 0.5, "training.label_smoothing": 0.0},
        {"data.image_size": 24},
    ],
    ids=",".join,
)
def test_what_the_user_sets_is_never_changed(user: dict[str, Any]) -> None:
    """No plan holds a setting of the user, and the rest still makes a valid config."""
    for limit in ({}, FIFTEEN_MINUTES):
        asked = {**user, **limit}
        made = plan(facts(rate=2_000.0), asked)
        assert not set(flatten_settings(made.settings)) & set(asked)
        config = whole(made, asked).model_dump(mode="json")
        for key, value in user.items():
            found: Any = config
            for part in key.split("."):
                found = found[part]
            assert found == value, key


def test_the_learning_rate_is_that_of_the_chosen_optimizer() -> None:
    """AdamW gets AdamW's rate, SGD gets SGD's; a rate alone is one of the default, AdamW."""
    rates = {
        name: whole(plan(facts(rate=131.0), {"optimizer.name": name})).optimizer
        for name in ("adamw", "muon", "sgd")
    }
    assert rates["adamw"].learning_rate < rates["muon"].learning_rate < 0.02
    assert rates["sgd"].learning_rate == pytest.approx(0.1)
    alone = plan(facts(rate=131.0), {"optimizer.learning_rate": 1e-3})
    assert alone.settings["optimizer"]["name"] == "adamw"


def test_a_preset_without_a_length_keeps_to_its_minutes_and_epochs() -> None:
    """The length is fixed before the first step: whole epochs, or fewer than ten in steps."""
    few = plan(facts(training_images=10_000, rate=5_000.0, preset="quick"), {})
    assert few.settings["training"]["epochs"] == PRESETS["quick"].epochs
    for rate, preset in ((100.0, "quick"), (100.0, "best"), (20.0, "balanced")):
        made = plan(facts(rate=rate, preset=preset), {})
        training, knots = whole(made).training, whole(made).record.step_plan
        assert training.time_limit is None
        if knots:
            [(_, _, steps)] = knots
            images = steps * training.batch_size
        else:
            images = training.epochs_without_limit * 42_500
        cost = 1 - FULL_SIZE_FROM * (1 - training.initial_image_scale**2)
        seconds = images * cost / made.images_per_second
        assert seconds == pytest.approx(54 * PRESETS[preset].minutes, rel=0.1)  # type: ignore[index]  # a preset's name
        assert ("--preset quick" in made.text()) is (preset != "quick")


def test_a_validation_split_larger_than_the_training_is_validated_in_parts() -> None:
    """All validations take at most a tenth of the time, and there are some before the last."""
    given = facts(training_images=1_000_000, validation_images=200_000, rate=50.0)
    made = whole(plan(given, {}))
    knots, validations = made.record.step_plan, made.record.validation_plan
    assert knots
    assert validations
    steps = [step for step, _ in validations]
    assert (len(steps), steps[-1]) == (6, knots[0][2])
    validated = sum(images for _, images in validations)
    trained = knots[0][2] * made.training.batch_size
    assert validated / 6 >= 64
    assert validated / 3 <= 0.12 * trained
    small = whole(plan(facts(validation_images=5_000, rate=200.0), {}))
    assert small.record.validation_plan is None


def test_images_beyond_the_memory_are_shuffled_in_windows() -> None:
    """Two windows fit the memory, the plan says why, and the fraction never grows with the data."""
    fractions = []
    for images in (1_000, 20_000, 200_000, 2_000_000, 20_000_000):
        made = plan(facts(training_images=images, median_side=500, host_memory_gib=16), {})
        fraction = made.settings.get("record", {}).get("shuffle_window", 1.0)
        assert ("record.shuffle_window" in made.text()) == (fraction < 1)
        fractions.append(fraction)
    assert fractions[0] == 1
    assert fractions[-1] < fractions[-2] < 1
    assert sorted(fractions, reverse=True) == fractions
    shared = {"host_memory_gib": 256, "cache_gib": 4.0}
    made = plan(facts(training_images=200_000, median_side=500, **shared), {})
    window = made.settings["record"]["shuffle_window"]
    side = made.settings["data"]["image_size"]
    assert window * 200_000 * side * side * 3 <= 4.0 * 2**30 / 8


def slow_ends(images: int, seconds: float) -> PlanFacts:
    """Return the facts of images whose epochs take so many seconds to end."""
    given = facts(training_images=images, validation_images=images // 5, rate=1_000.0)
    ends = {"validated_per_second": 5_000.0, "epoch_end_seconds": seconds}
    speeds = tuple(each.model_copy(update=ends) for each in given.speeds)
    return given.model_copy(update={"speeds": speeds})


@pytest.mark.parametrize("folds", [None, 5])
def test_an_epoch_is_planned_with_its_end(folds: int | None) -> None:
    """All steps, validations and copies of the weights together take the time limit."""
    given, user = slow_ends(500, 0.05), {"training.time_limit": "1m", "training.folds": folds}
    tiny = given.speeds[0].model_copy(update={"candidate": "tiny"})
    made = draft_plan(given.model_copy(update={"speeds": (tiny, *given.speeds)}), user)
    trained, validated, all_fits = (480, 120, 6 * 480 + 120) if folds else (500, 100, 500)
    epoch = trained / 1_000 + validated / 5_000 + 0.05
    assert made.length.epochs == pytest.approx(60 * trained / all_fits / epoch)
    assert made.length.seconds / made.length.training_share == pytest.approx(
        60 * trained / all_fits
    )
