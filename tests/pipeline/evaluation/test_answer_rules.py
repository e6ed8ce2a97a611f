"""Rules fitted on held-out images keep their promises on new images with known truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from patchline.pipeline.data.reading.image_quality import ImageQuality
from patchline.pipeline.evaluation.answers_report import (
    SAME_IMAGES,
    HeldOutImages,
    MeasuredImages,
    check_answers,
    fit_rules,
)
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.predictions import Predictions
from tests.pipeline.evaluation.conftest import random_predictions

Array = np.ndarray[Any, Any]
CLASSES = 4
NOTHING = ImageQuality(*[np.zeros(0)] * 4)
CONFIG = EvaluationConfig()
MEASURED = MeasuredImages(NOTHING, None)


def _predictions(seed: int, count: int, **more: Any) -> Predictions:
    """Return predictions whose labels are drawn."""
    return random_predictions(count, CLASSES, seed=seed, **more)


def _held(
    predictions: Predictions, features: Mapping[int, Array] | None = None, **changed: Any
) -> HeldOutImages:
    why = "" if features else "it has no head"
    values: dict[str, Any] = {"why_none": "", "why_no_features": why, "unseen": predictions}
    values |= changed
    return HeldOutImages(
        predictions=predictions, basis="the validation images", features=features or {},
        quality=NOTHING, side=32, seed=0, **values,
    )  # fmt: skip


def test_the_promised_coverage_holds_on_average() -> None:
    """Over many draws, sets fitted on 200 images hold the true class of 200 new ones as often."""
    held = {0.9: 0, 0.95: 0, 0.99: 0}
    draws, images = 12, 200
    for seed in range(draws):
        rules, _ = fit_rules(_held(_predictions(2 * seed, 200, hard=True)), CONFIG)
        new = _predictions(2 * seed + 1, images, hard=True)
        for check in check_answers(rules, new, MEASURED).sets:
            assert check.covered is not None
            held[check.coverage] += round(check.covered.value * images)
    for coverage, count in held.items():
        # Both samples vary: the coverage given one of the two is beta-binomial.
        rank = int(np.ceil(round(201 * coverage, 9)))
        error = stats.betabinom(images, rank, 201 - rank).std() / images / np.sqrt(draws)
        assert count / draws / images == pytest.approx(rank / 201, abs=4 * error)


def test_with_enough_images_every_class_is_covered() -> None:
    """From 100 images of every class on, each class has a threshold, and its own coverage."""
    few, _ = fit_rules(_held(_predictions(0, 300, hard=True)), CONFIG)
    rules, _ = fit_rules(_held(_predictions(0, 1200, hard=True)), CONFIG)
    assert few.thresholds[0].by_class == ()
    new = _predictions(1, 4000, hard=True)
    own, together = (check_answers(each, new, MEASURED).sets[0] for each in (rules, few))
    assert len(own.by_class) == CLASSES
    assert own.by_class[0].covered.value > 0.84
    assert together.by_class[0].name == "class 0"
    assert together.by_class[0].covered.value < 0.75


@pytest.mark.parametrize(("images", "groups"), [(30, 0), (600, 30)], ids=["images", "groups"])
def test_too_few_units_are_unknown_with_the_number_that_is_needed(images: int, groups: int) -> None:
    """A coverage that 30 images or groups cannot promise has no threshold, and says why."""
    group = (np.arange(images) % groups).astype(str) if groups else ""
    rules, reference = fit_rules(_held(_predictions(0, images, group=group)), CONFIG)
    known = {each.coverage: each.least_probability is not None for each in rules.thresholds}
    assert (known, rules.groups) == ({0.9: True, 0.95: True, 0.99: False}, groups)
    units = "groups" if groups else "images"
    why = f"only 30 validation {units}; a coverage of 0.99 needs at least 99"
    assert rules.thresholds[-1].unknown == why
    assert (rules.far, reference, rules.unknown["far"]) == (None, None, "it has no head")
    answers = check_answers(rules, _predictions(1, 50), MEASURED)
    assert answers.sets[-1].covered is None
    assert f"0.99 are not known: {why}" in " ".join(answers.sentences("test images"))
    none, _ = fit_rules(_held(_predictions(0, 0), why_none="there are none"), CONFIG)
    assert {each.unknown for each in none.thresholds} == {"there are none"}


def test_a_chosen_coverage_has_its_threshold() -> None:
    """`evaluation.coverage` is the answers' own, beside the three that every package has."""
    config = EvaluationConfig(coverage=0.8)
    rules, _ = fit_rules(_held(_predictions(0, 200)), config)
    assert [each.coverage for each in rules.thresholds] == [0.8, 0.9, 0.95, 0.99]
    answers = check_answers(rules, _predictions(1, 200), MEASURED)
    assert answers.chosen.coverage == 0.8
    assert set(answers.metrics("test")) >= {"test/set_coverage", "test/single_class_sets"}


def test_the_false_alarm_rate_is_the_chosen_one() -> None:
    """Images like the held-out ones are called far as often as chosen; others nearly always."""
    draws, images, warned, caught = 20, 100, 0, 0
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        features = dict(enumerate(generator.standard_normal((400, 16)).astype(np.float32)))
        rules, reference = fit_rules(_held(_predictions(seed, 400), features), CONFIG)
        assert reference is not None
        assert rules.far is not None
        new = generator.standard_normal((images, 16))
        warned += int((reference.neighbours.distances(new) > rules.far).sum())
        caught += int((reference.neighbours.distances(2.5 * new) > rules.far).sum())
    rank = int(np.ceil(round(201 * 0.95, 9)))
    error = stats.betabinom(images, 201 - rank, rank).std() / images / np.sqrt(draws)
    assert warned / draws / images == pytest.approx(1 - rank / 201, abs=4 * error)
    assert caught / draws / images > 0.9


def test_the_distance_of_a_model_trained_on_all_other_images_comes_from_the_test() -> None:
    """Its false alarms are nearly as chosen, and not measured on the images they come from."""
    held, tested = _predictions(0, 300), _predictions(1, 120)
    tested.table.index += 300
    generator = np.random.default_rng(0)
    # The final model's features of what it was trained on lie closer together.
    own = dict(enumerate(0.3 * generator.standard_normal((300, 8)).astype(np.float32)))
    new = enumerate(generator.standard_normal((120, 8)).astype(np.float32), start=300)
    rules, reference = fit_rules(_held(held, own | dict(new), unseen=tested), CONFIG)
    assert reference is not None
    assert rules.far_split == "test"
    others = reference.neighbours.distances(generator.standard_normal((500, 8)))
    assert 0.01 < (others > np.float64(rules.far or 0)).mean() < 0.12
    measured = MeasuredImages(NOTHING, None, SAME_IMAGES)
    said = " ".join(check_answers(rules, tested, measured).sentences("test images"))
    assert "'far' is given to 5.0% of new images like those that its limit comes from" in said
    few, _ = fit_rules(_held(held, own, unseen=_predictions(1, 0)), CONFIG)
    assert few.unknown["far"] == "only 0 test images; 5% false alarms needs at least 37"


def test_what_coverage_means_is_said() -> None:
    """Where it is below the nominal one beyond chance."""
    rules, _ = fit_rules(_held(_predictions(0, 400)), CONFIG)
    kept, broken = (
        check_answers(rules, _predictions(1, 400, hard=hard), MEASURED) for hard in (False, True)
    )
    assert (kept.chosen.is_broken, broken.chosen.is_broken) == (False, True)
    assert "less than nominal" in broken.sentences("test images")[0]


def test_the_distance_is_scikit_learns() -> None:
    """The distance is that to the k-th neighbour of scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    from patchline.pipeline.evaluation.metrics.feature_distance import Neighbours

    generator = np.random.default_rng(0)
    reference = 50 + generator.standard_normal((120, 24))
    features = 50 + 2 * generator.standard_normal((30, 24))
    expected, _ = NearestNeighbors(n_neighbors=10).fit(reference).kneighbors(features)
    ours = Neighbours(reference, 10).distances(features)
    np.testing.assert_allclose(ours, expected[:, -1], rtol=1e-4)
