"""Rules fitted on held-out images keep their promises on new images with known truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import softmax

from patchline.pipeline.data.reading.image_quality import Quality
from patchline.pipeline.evaluation.answer_rules_fit import HeldOutImages, fitted_rules
from patchline.pipeline.evaluation.answers_report import (
    SAME_IMAGES,
    MeasuredImages,
    checked_answers,
)
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.predictions import Predictions

Array = np.ndarray[Any, Any]
CLASSES = 4
NOTHING = Quality(*[np.zeros(0)] * 4)
CONFIG = EvaluationConfig()


def _predictions(
    seed: int, count: int, *, hard: bool = False, groups: Array | None = None
) -> Predictions:
    """Return predictions whose labels are drawn; if `hard`, class 0 is nearly guessed."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    logits = generator.standard_normal((count, CLASSES))
    logits[np.arange(count), labels] += np.where((labels == 0) & hard, 0.0, 2.0)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return _of(probabilities, labels, seed, groups)


def _of(
    probabilities: Array, labels: Array, seed: int = 0, groups: Array | None = None
) -> Predictions:
    count = len(labels)
    table = pd.DataFrame(
        {
            "path": [f"{seed}/{each}.png" for each in range(count)],
            "group": [""] * count if groups is None else groups.astype(str),
            "label": labels.astype(str), "label_index": labels,
            "probabilities": list(probabilities), "width": 40, "height": 30,
        }
    )  # fmt: skip
    return Predictions.of(table)


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


@pytest.mark.parametrize("hard", [False, True])
def test_the_promised_coverage_holds_on_average(hard: bool) -> None:
    """Over many draws, sets fitted on 200 images hold the true class of 200 new ones as often."""
    held = {0.9: 0, 0.95: 0, 0.99: 0}
    draws, images = 60, 200
    for seed in range(draws):
        rules, _ = fitted_rules(_held(_predictions(2 * seed, 200, hard=hard)), CONFIG)
        new = _predictions(2 * seed + 1, images, hard=hard)
        answers = checked_answers(rules, new, MeasuredImages(NOTHING, None), CONFIG)
        for check in answers.sets:
            assert check.covered is not None
            held[check.coverage] += round(check.covered.value * images)
    for coverage, count in held.items():
        exact = np.ceil(round(201 * coverage, 9)) / 201
        # Both samples vary: the coverage given one of the two is beta-binomial.
        rank = int(np.ceil(round(201 * coverage, 9)))
        error = stats.betabinom(images, rank, 201 - rank).std() / images / np.sqrt(draws)
        assert count / draws / images == pytest.approx(exact, abs=4 * error)


def test_with_enough_images_every_class_is_covered() -> None:
    """From 100 images of every class on, each class has a threshold, and its own coverage."""
    few, _ = fitted_rules(_held(_predictions(0, 300, hard=True)), CONFIG)
    assert few.thresholds[0].by_class == ()
    rules, _ = fitted_rules(_held(_predictions(0, 4000, hard=True)), CONFIG)
    new = _predictions(1, 20_000, hard=True)
    by_class = checked_answers(rules, new, MeasuredImages(NOTHING, None), CONFIG)
    marginal = rules.model_copy(
        update={
            "thresholds": tuple(
                each.model_copy(update={"by_class": ()}) for each in rules.thresholds
            )
        }
    )
    together = checked_answers(marginal, new, MeasuredImages(NOTHING, None), CONFIG)
    own, all_at_once = by_class.sets[0], together.sets[0]
    assert len(own.by_class) == CLASSES
    assert own.by_class[0].covered.value > 0.87
    assert all_at_once.by_class[0].name == "0"
    assert all_at_once.by_class[0].covered.value < 0.75


def test_too_few_images_are_unknown_with_the_number_that_is_needed() -> None:
    """A coverage that the images cannot promise has no threshold, and says why."""
    rules, reference = fitted_rules(_held(_predictions(0, 30)), CONFIG)
    known = {each.coverage: each.least_probability is not None for each in rules.thresholds}
    assert known == {0.9: True, 0.95: True, 0.99: False}
    why = rules.thresholds[-1].unknown
    assert why == "only 30 validation images; a coverage of 0.99 needs at least 99"
    assert (rules.far, reference) == (None, None)
    assert rules.unknown["far"] == "it has no head"
    none, _ = fitted_rules(_held(_predictions(0, 0), why_none="there are none"), CONFIG)
    assert {each.unknown for each in none.thresholds} == {"there are none"}
    answers = checked_answers(rules, _predictions(1, 50), MeasuredImages(NOTHING, None), CONFIG)
    assert answers.sets[-1].covered is None
    assert "sets with a coverage of 0.99 are not known: only 30" in " ".join(
        answers.sentences("test images")
    )


def test_a_chosen_coverage_has_its_threshold() -> None:
    """`evaluation.coverage` is the answers' own, beside the three that every package has."""
    config = EvaluationConfig(coverage=0.8)
    rules, _ = fitted_rules(_held(_predictions(0, 200)), config)
    assert [each.coverage for each in rules.thresholds] == [0.8, 0.9, 0.95, 0.99]
    answers = checked_answers(rules, _predictions(1, 200), MeasuredImages(NOTHING, None), config)
    assert answers.chosen.coverage == 0.8
    assert set(answers.metrics("test")) >= {"test/set_coverage", "test/single_class_sets"}


def test_groups_count_as_units() -> None:
    """Images of 30 groups are 30 units: 95% is known, 99% is not."""
    predictions = _predictions(0, 600, groups=np.arange(600) % 30)
    rules, _ = fitted_rules(_held(predictions), CONFIG)
    assert rules.groups == 30
    known = {each.coverage: each.least_probability is not None for each in rules.thresholds}
    assert known == {0.9: True, 0.95: True, 0.99: False}
    assert rules.thresholds[-1].unknown.startswith("only 30 validation groups; ")


def test_the_false_alarm_rate_is_the_chosen_one() -> None:
    """Images like the held-out ones are called far as often as chosen; others nearly always."""
    draws, images, warned, caught = 40, 100, 0, 0
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        features = dict(enumerate(generator.standard_normal((400, 16)).astype(np.float32)))
        rules, reference = fitted_rules(_held(_predictions(seed, 400), features), CONFIG)
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
    """Its false alarms are as chosen, and are not measured on the images that they come from."""
    held, tested = _predictions(0, 300), _predictions(1, 120)
    tested.table.index += 300
    draws, images, warned = 60, 100, 0
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        # The final model's features of what it was trained on lie closer together.
        own = dict(enumerate(0.3 * generator.standard_normal((300, 8)).astype(np.float32)))
        new = enumerate(generator.standard_normal((120, 8)).astype(np.float32), start=300)
        rules, reference = fitted_rules(_held(held, own | dict(new), unseen=tested), CONFIG)
        assert reference is not None
        assert rules.far is not None
        others = reference.neighbours.distances(generator.standard_normal((images, 8)))
        warned += int((others > rules.far).sum())
    rank = int(np.ceil(round(61 * 0.95, 9)))
    error = stats.betabinom(images, 61 - rank, rank).std() / images / np.sqrt(draws)
    assert warned / draws / images == pytest.approx(1 - rank / 61, abs=4 * error)
    assert rules.far_split == "test"
    measured = MeasuredImages(NOTHING, None, SAME_IMAGES)
    said = " ".join(checked_answers(rules, tested, measured, CONFIG).sentences("test images"))
    assert "'far' is given to 5.0% of new images like those that its limit comes from" in said
    few, _ = fitted_rules(_held(held, own, unseen=_predictions(1, 0)), CONFIG)
    assert few.unknown["far"] == "only 0 test images; 5% false alarms needs at least 37"


def test_sets_of_an_ensemble_from_its_members_cover_what_was_promised() -> None:
    """The threshold of single members' predictions, for the average of them, covers no less."""
    folds, per_fold, new, draws = 5, 30, 400, 12
    generator, covered = np.random.default_rng(0), []
    for _ in range(draws):
        labels = generator.integers(0, CLASSES, folds * per_fold + new)
        shared = generator.standard_normal((len(labels), CLASSES))
        shared[np.arange(len(labels)), labels] += 1.5
        members = [
            softmax(2 * (shared + generator.standard_normal(shared.shape)), axis=1)
            for _ in range(folds)
        ]
        own = np.concatenate(
            [each[k * per_fold : (k + 1) * per_fold] for k, each in enumerate(members)]
        )
        held = folds * per_fold
        rules, _ = fitted_rules(_held(_of(own, labels[:held])), CONFIG)
        average = _of(np.mean([each[held:] for each in members], axis=0), labels[held:])
        sets = checked_answers(rules, average, MeasuredImages(NOTHING, None), CONFIG).sets
        covered.append([each.covered.value for each in sets if each.covered])
    error = np.std(covered, axis=0) / np.sqrt(draws)
    assert (np.mean(covered, axis=0) > np.array([0.9, 0.95, 0.99]) - 2 * error).all()


def test_what_coverage_means_is_said() -> None:
    """Below the nominal one beyond chance; an average; not guaranteed for another final model."""
    rules, _ = fitted_rules(_held(_predictions(0, 400)), CONFIG)
    kept, broken = (
        checked_answers(rules, each, MeasuredImages(NOTHING, None), CONFIG)
        for each in (_predictions(1, 400), _predictions(1, 400, hard=True))
    )
    assert not kept.chosen.is_broken
    assert broken.chosen.is_broken
    assert "less than nominal" in broken.sentences("test images")[0]
    assert "an average over new images like the validation images" in kept.sentences("")[3]
    refitted = kept.rules.model_copy(update={"basis": "the models of folds"})
    assert "not guaranteed" in kept.model_copy(update={"rules": refitted}).sentences("")[3]


def test_the_distance_is_scikit_learns() -> None:
    """The distance is that to the k-th neighbour of scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    from patchline.pipeline.metrics.feature_distance import Neighbours

    generator = np.random.default_rng(0)
    reference = 50 + generator.standard_normal((120, 24))
    features = 50 + 2 * generator.standard_normal((30, 24))
    expected, _ = NearestNeighbors(n_neighbors=10).fit(reference).kneighbors(features)
    ours = Neighbours(reference, 10).distances(features)
    np.testing.assert_allclose(ours, expected[:, -1], rtol=1e-4)
