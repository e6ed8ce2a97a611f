"""What the time of a run is spent on: a pure function of numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.config_files import build_config
from patchline.pipeline.models.time_after_training import estimate_evaluation, estimate_packaging
from patchline.pipeline.planning.draft import draft_plan
from patchline.pipeline.planning.facts import DataFacts, PlanFacts, Speed
from patchline.pipeline.planning.planner import fit_time
from patchline.pipeline.planning.published import FEATURES
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.planning.time_shares import TimeShares, training_share

SECONDS = st.floats(0, 1e4)


@pytest.mark.parametrize(
    ("limit", "before", "after", "training"),
    [
        (300.0, 0.0, 0.0, 300.0),
        (300.0, 40.0, 80.0, 180.0),
        (300.0, 250.0, 80.0, 30.0),  # a tenth in any case
        (10.0, 12.0, 9.0, 1.0),
    ],
)
def test_training_gets_what_the_rest_leaves(
    limit: float, before: float, after: float, training: float
) -> None:
    """At least a tenth, so that there is a model at all."""
    shares = TimeShares(limit=limit, before=before, evaluation=after / 2, packaging=after / 2)
    assert shares.training == pytest.approx(training)
    assert training_share(limit, before + after) == pytest.approx(training / limit)


@given(limit=st.floats(1, 1e5), before=SECONDS, evaluation=SECONDS, packaging=SECONDS)
def test_the_parts_fit_the_limit_unless_the_rest_alone_does_not(
    limit: float, before: float, evaluation: float, packaging: float
) -> None:
    """Then training takes a tenth, and the sentence says how long the run takes."""
    shares = TimeShares(
        limit=limit, before=before, evaluation=evaluation, packaging=packaging, features=1.0
    )
    total = shares.others + shares.training
    assert total <= max(limit, shares.others + 0.1 * limit) * (1 + 1e-9)
    too_long = shares.others + max(1.0, 0.1 * limit) > limit
    assert ("at least" in shares.sentence()) is too_long


def test_the_sentence_names_every_part() -> None:
    """Features are part of what training gets."""
    shares = TimeShares(limit=300, before=30, features=100, evaluation=40, packaging=50)
    assert shares.sentence() == (
        "time: 5 min from start to report (reading and planning 30 s, features 2 min, "
        "training 80 s, evaluation 40 s, packaging 50 s)"
    )


def facts_of(images: int = 3_000, *, other: float = 0.0, **own: Any) -> PlanFacts:
    """Return facts of photographs that are split 70, 15 and 15%."""
    held = images * 15 // 100
    data = DataFacts(
        training_images=images - 2 * held,
        validation_images=held,
        test_images=held,
        classes=10,
        median_side=300,
    )
    return PlanFacts(preset="quick", data=data, other_seconds=other, **own)


@pytest.mark.parametrize("user", [{}, {"training.time_limit": "5m"}])
def test_a_preset_and_a_limit_are_the_same_time(user: dict[str, str]) -> None:
    """What comes before and after the training is taken off both."""
    speeds = (Speed(candidate="small", images_per_second=100.0),)
    seen = []
    for other in (0.0, 150.0, 900.0):
        draft = draft_plan(facts_of(other=other, speeds=speeds), user)
        [small] = [each for each in draft.candidates if each.name == "small"]
        seen.append(draft.length_of(small).images_seen)
    assert seen[1] == pytest.approx(seen[0] / 2)
    assert seen[2] == pytest.approx(seen[0] / 10)


def test_a_number_of_epochs_is_trained_whatever_the_rest_takes() -> None:
    """Without a limit, nothing is taken off."""
    speeds = (Speed(candidate="small", images_per_second=100.0),)
    made = [
        plan(facts_of(other=other, speeds=speeds), {"training.epochs": 7}).settings
        for other in (0.0, 250.0)
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("speed", "side"), [(100.0, 224), (12.0, 224), (5.0, 144), (4.0, 128), (1.0, 96)]
)
def test_images_are_smaller_where_their_features_would_not_fit(speed: float, side: int) -> None:
    """Five minutes for 3,000 photographs; the plan says how long full size takes."""
    speeds = (Speed(candidate=FEATURES, images_per_second=speed),)
    size = {"weights_side": 224, "weights_patch": 16}
    made = plan(facts_of(speeds=speeds, **size), {"training.time_limit": "5m"}, "published")
    assert made.settings["data"] == {"image_size": side}
    assert (f"at {side} instead of 224 pixels" in made.reasons[0]) is (side < 224)
    assert f"for images of {side}x{side} pixels" in made.summary[0]
    fixed = plan(facts_of(speeds=speeds), {"data.image_size": 224}, "published")
    assert "data" not in fixed.settings


def test_estimates_grow_with_the_images_and_with_what_else_runs() -> None:
    """A network of CLIP's size at 8 images/s explains for 20 s, on 45 images too."""
    of_none, few, many = (
        estimate_evaluation(images, 8.0, 86_000_000, 1.0, explains=True)
        for images in (0, 90, 1_200)
    )
    assert 20 < of_none < few < 60 < many
    assert few - of_none == pytest.approx(90 / 8)
    without = estimate_evaluation(90, 8.0, 86_000_000, 1.0, explains=False)
    assert few - without > 20
    busy = estimate_evaluation(90, 8.0, 86_000_000, 8.0, explains=False)
    assert busy > without
    assert estimate_packaging(750, 8.0, 86_000_000, 1.0) > 750 / 8
    assert estimate_evaluation(300, 3_000.0, 0, 1.0, explains=True) < 10


@pytest.mark.parametrize("speed", [3.0, 5.0, 6.7, 9.0, 14.0, 40.0])
def test_what_a_plan_trains_and_the_rest_of_its_run_fit_the_limit(speed: float) -> None:
    """Smaller images make the evaluation shorter, too, which leaves time for larger ones."""
    limit = {"training": {"time_limit": "10m"}, "model": {"init": "weights.safetensors"}}
    config = build_config("photos", preset_name="balanced", flags=limit)
    features = Speed(
        candidate=FEATURES, images_per_second=speed, validated_per_second=speed / 3,
        precision="bfloat16",
    )  # fmt: skip
    facts = facts_of(3_781, speeds=(features,), weights_side=224, weights_patch=16)
    facts = facts.model_copy(update={"parameters": 86_000_000})
    made = fit_time(config, facts, {"training.time_limit": "10m"}, "published", 45.0)
    again = fit_time(config, made.facts, {"training.time_limit": "10m"}, "published", 45.0)
    assert made.shares is not None
    assert again.shares is not None
    side = made.settings["data"]["image_size"]
    assert abs(side - again.settings["data"]["image_size"]) <= 16
    assert made.shares.evaluation == pytest.approx(again.shares.evaluation, rel=0.25)
    needed = made.shares.others + made.shares.features
    assert needed <= 1.1 * 600 or side == 96
    assert side == 96 or needed >= 0.5 * 600 or side == 224
