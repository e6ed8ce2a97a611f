"""The head equals scikit-learn's, for one label and for sets, with the best tried penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from patchline.pipeline.errors import RunError
from patchline.pipeline.models.probing import logistic_regression
from patchline.pipeline.models.probing.few_images import FEWEST_VALIDATION
from patchline.pipeline.models.probing.linear_fit import (
    REGULARIZATIONS,
    FittedHead,
    fit_head,
    split_into_folds,
)

_Array = np.ndarray[Any, Any]


def drawn(images: int, features: int, classes: int, apart: float) -> tuple[_Array, _Array]:
    """Return correlated features with an offset, a constant one among them, and their classes."""
    random = np.random.default_rng(images + features)
    labels_N = random.permutation(np.arange(images) % classes)
    centres_KD = apart * random.normal(size=(classes, features))
    mixed_DD = random.normal(size=(features, features)) / np.arange(1, features + 1)[:, None]
    features_ND = (centres_KD[labels_N] + random.normal(size=(images, features))) @ mixed_DD
    features_ND += 5 * random.normal(size=features)
    features_ND[:, 0] = 0.1
    return features_ND.astype(np.float32), labels_N


def drawn_sets(images: int, features: int, labels: int) -> tuple[_Array, _Array]:
    """Return such features, and sets of labels, rare ones among them."""
    features_ND, _ = drawn(images, features, labels, 0.0)
    random = np.random.default_rng(0)
    scores_NK = features_ND @ random.normal(size=(features, labels))
    scores_NK = scores_NK / scores_NK.std(0) + random.normal(size=(images, labels))
    return features_ND, (scores_NK > np.linspace(0, 2, labels) + scores_NK.mean(0)).astype(np.uint8)


def halves(
    features_ND: _Array, labels_N: _Array, count: int
) -> tuple[_Array, _Array, _Array, _Array]:
    """Return the first so many images to train on, and the others to validate on."""
    return features_ND[:count], labels_N[:count], features_ND[count:], labels_N[count:]


def probabilities(head: FittedHead, features_ND: _Array, *, sets: bool = False) -> _Array:
    """Return the softmax of the head's logits, or their sigmoids."""
    logits_NK = features_ND.astype(np.float64) @ head.weight_KD.T + head.bias_K
    result: _Array = expit(logits_NK) if sets else softmax(logits_NK, axis=1)
    return result


def by_scikit_learn(
    features_ND: _Array, labels: _Array, c_used: float, tested_ND: _Array, **settings: Any
) -> _Array:
    """Return the probabilities of scikit-learn's classifier, on standardised features."""
    scaler = StandardScaler().fit(features_ND.astype(np.float64))
    one = LogisticRegression(C=c_used, tol=1e-9, max_iter=10_000, **settings)
    classifier = one if labels.ndim == 1 else OneVsRestClassifier(one)
    train_ND, test_ND = (
        scaler.transform(each.astype(np.float64)) for each in (features_ND, tested_ND)
    )
    result: _Array = classifier.fit(train_ND, labels).predict_proba(test_ND)
    return result


def mean_loss(head: FittedHead, features_ND: _Array, labels_N: _Array) -> float:
    """Return the log loss."""
    return float(log_loss(labels_N, probabilities(head, features_ND)))


@pytest.mark.parametrize(
    ("size", "weighted", "exact"),
    [
        ((60, 90, 4, 3.0), False, True),
        ((300, 20, 3, 0.3), True, True),
        ((50, 80, 2, 2.0), True, True),
        ((400, 30, 4, 0.4), False, False),
    ],
    ids=["separable", "weighted", "two separable", "float32"],
)
def test_equals_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int, int, float],
    weighted: bool,
    exact: bool,
) -> None:
    """With the same C and standardised features: the same predictions and probabilities."""
    if not exact:
        monkeypatch.setattr(logistic_regression, "_EXACT_NUMBERS", 0)
        monkeypatch.setattr(logistic_regression, "_LOGITS_AT_ONCE", 250)  # several parts
    images, features, classes, apart = size
    features_ND, labels_N = drawn(images + 100, features, classes, apart)
    weights_K = np.linspace(0.5, 2, classes, dtype=np.float32) if weighted else None
    split = halves(features_ND, labels_N, images)
    head = fit_head(*split, classes, class_weights_K=weights_K)
    own = None if weights_K is None else dict(enumerate(weights_K.tolist()))
    expected_NK = by_scikit_learn(*split[:2], head.regularization, features_ND, class_weight=own)
    np.testing.assert_allclose(probabilities(head, features_ND), expected_NK, atol=1e-3)


@pytest.mark.parametrize("regularization", [1e-4, 100.0])
@pytest.mark.parametrize(
    ("images", "features", "exact"), [(400, 20, True), (90, 120, True), (400, 20, False)]
)
def test_the_fit_of_sets_is_scikit_learns(
    monkeypatch: pytest.MonkeyPatch, images: int, features: int, regularization: float, exact: bool
) -> None:
    """With more images than features or fewer, in float64 and float32.

    Weights of present labels are those of a class.
    """
    if not exact:
        monkeypatch.setattr(logistic_regression, "_EXACT_NUMBERS", 0)
    features_ND, sets_NK = drawn_sets(images, features, 3)
    given = (*halves(features_ND, sets_NK, images), 3)
    head = fit_head(*given, regularization=regularization)
    expected_NK = by_scikit_learn(features_ND, sets_NK, regularization, features_ND)
    tolerance = 1e-4 if exact else 1e-3
    found_NK = probabilities(head, features_ND, sets=True)
    np.testing.assert_allclose(found_NK, expected_NK, atol=tolerance)
    weights_K = np.array([3.0, 1.0, 1.0], np.float32)
    head = fit_head(*given, class_weights_K=weights_K, regularization=regularization)
    weighted = by_scikit_learn(
        features_ND, sets_NK[:, 0], regularization, features_ND, class_weight={0: 1, 1: 3}
    )
    found_NK = probabilities(head, features_ND, sets=True)
    np.testing.assert_allclose(found_NK[:, 0], weighted[:, 1], atol=tolerance)


def test_the_best_of_the_tried_penalties_wins() -> None:
    """The head's own log loss on validation is the smallest in the list, and is listed there.

    A second fit gives the same bits.
    """
    features_ND, labels_N = drawn(400, 30, 4, 0.4)
    seen: list[tuple[int, int]] = []
    split = halves(features_ND, labels_N, 200)
    head, again = (
        fit_head(*split, 4, on_progress=lambda done, of: seen.append((done, of))) for _ in range(2)
    )
    assert head.weight_KD.tobytes() == again.weight_KD.tobytes()
    losses = [fit.validation_loss for fit in head.tried]
    best = losses.index(min(losses))
    assert 0 < best < len(losses) - 1
    assert head.regularization == head.tried[best].regularization
    assert mean_loss(head, *split[2:]) == pytest.approx(min(losses), abs=1e-5)
    assert [fit.regularization for fit in head.tried] == list(REGULARIZATIONS[: len(losses)])
    assert len(losses) == best + 4 < len(REGULARIZATIONS)
    assert seen[: len(losses)] == [
        (done, len(REGULARIZATIONS)) for done in range(1, len(losses) + 1)
    ]
    assert (head.validation_images, head.held_out_images) == (200, 0)


def test_of_equal_penalties_the_strongest_wins() -> None:
    """Features without any information: every penalty gives the same loss."""
    same_ND, labels_N = np.ones((100, 3), np.float32), np.arange(100) % 2
    head = fit_head(same_ND, labels_N, same_ND[:60], labels_N[:60], 2)
    assert len({fit.validation_loss for fit in head.tried}) == 1
    assert head.regularization == REGULARIZATIONS[0]


def test_without_validation_images_training_images_are_held_out() -> None:
    """Each fold is predicted without it, so a penalty is preferred that is better on new images."""
    features_ND, labels_N = drawn(1060, 60, 3, 0.3)
    split = halves(features_ND, labels_N, 60)
    head = fit_head(*split[:2], features_ND[:0], labels_N[:0], 3)
    assert (head.validation_images, head.held_out_images) == (0, 60)
    informed = fit_head(*split, 3)
    reached, best = (mean_loss(each, *split[2:]) for each in (head, informed))
    weakest = informed.tried[-1].validation_loss
    assert reached < best + 0.5 * (weakest - best)


def test_few_validation_images_are_joined_by_held_out_ones() -> None:
    """A handful of images would decide by chance, and a class may be missing among them."""
    features_ND, labels_N = drawn(100, 20, 4, 0.5)
    few = np.flatnonzero(labels_N[60:] != 3)[: FEWEST_VALIDATION - 40] + 60
    head = fit_head(features_ND[:60], labels_N[:60], features_ND[few], labels_N[few], 4)
    assert (head.validation_images, head.held_out_images) == (10, 60)


def test_one_image_a_class_can_be_fitted() -> None:
    """There is nothing to compare penalties with, so C is 1; the images are recognised."""
    features_ND, labels_N = drawn(4, 20, 4, 2.0)
    head = fit_head(features_ND, labels_N, features_ND[:0], labels_N[:0], 4)
    assert (head.regularization, head.tried) == (1.0, ())
    assert np.array_equal(probabilities(head, features_ND).argmax(1), labels_N)


def test_features_that_are_no_numbers_are_an_error() -> None:
    """The number of images is named, of training or of validation."""
    features_ND, labels_N = drawn(40, 5, 2, 0.5)
    spoilt_ND = features_ND.copy()
    spoilt_ND[[3, 7], 2] = np.nan, np.inf
    with pytest.raises(RunError, match=r"features of 2 of 40 images are not finite.*Set training"):
        fit_head(spoilt_ND, labels_N, features_ND, labels_N, 2)
    with pytest.raises(RunError, match="features of 2 of 40 images"):
        fit_head(features_ND, labels_N, spoilt_ND, labels_N, 2)


@pytest.mark.parametrize("seed", range(6))
def test_images_that_belong_together_are_held_out_together(seed: int) -> None:
    """Every fit without a fold sees all classes; without units, all images are held out."""
    random = np.random.default_rng(seed)
    labels_N = random.integers(0, 4, 60)
    units_N = random.integers(0, random.integers(2, 40), 60)
    if seed % 2:  # all images of a unit are of one class
        units_N = 100 * labels_N + units_N
    for folds in (2, 5):
        parts = split_into_folds(labels_N, units_N, folds)
        assert len(np.unique(np.concatenate([*parts, []]))) == sum(map(len, parts))
        for rows in parts:
            fitted = np.delete(np.arange(60), rows)
            assert not set(units_N[rows]) & set(units_N[fitted])
            assert set(labels_N[fitted]) == set(labels_N)
        alone = split_into_folds(labels_N, None, folds)
        assert sorted(np.concatenate(alone)) == list(range(60))
        for label in range(4):  # each class is cut in parts of nearly the same size
            sizes = [(labels_N[rows] == label).sum() for rows in alone]
            assert max(sizes) - min(sizes) <= 1


def test_c_is_that_of_the_largest_map_on_validation() -> None:
    """Every tried value has scikit-learn's mAP, and the first of the largest is taken."""
    split = halves(*drawn_sets(400, 60, 3), 150)
    head = fit_head(*split, 3)
    maps = []
    for each in head.tried:
        assert each.validation_accuracy is None
        predicted = by_scikit_learn(*split[:2], each.regularization, split[2])
        maps.append(average_precision_score(split[3], predicted))
        assert each.validation_map == pytest.approx(maps[-1], abs=2e-4)
    assert head.regularization == head.tried[int(np.argmax(maps))].regularization
    assert (head.validation_images, head.held_out_images) == (250, 0)


def test_a_label_of_no_image_is_predicted_for_none_and_harms_no_other() -> None:
    """Its probability is about that of half an image among all."""
    features_ND, sets_NK = drawn_sets(200, 10, 3)
    without = sets_NK.copy()
    without[:, 1] = 0
    whole, part = (
        fit_head(*halves(features_ND, each, 200), 3, regularization=1.0)
        for each in (sets_NK, without)
    )
    found_NK = probabilities(part, features_ND, sets=True)
    assert found_NK[:, 1] == pytest.approx(0.5 / 201, abs=1e-3)
    np.testing.assert_allclose(part.weight_KD[0], whole.weight_KD[0], atol=1e-4)
