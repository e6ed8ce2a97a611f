"""The head equals scikit-learn's, and its penalty is the best of those that were tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from patchline.pipeline.errors import RunError
from patchline.pipeline.probing import logistic_regression
from patchline.pipeline.probing.few_images import FEWEST_VALIDATION
from patchline.pipeline.probing.linear_fit import (
    REGULARIZATIONS,
    FittedHead,
    fit_head,
    held_out_folds,
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


def halves(features_ND: _Array, labels_N: _Array, count: int) -> tuple[_Array, ...]:
    """Return the first so many images to train on, and the others to validate on."""
    return features_ND[:count], labels_N[:count], features_ND[count:], labels_N[count:]


def probabilities(head: FittedHead, features_ND: _Array) -> _Array:
    """Return the softmax of the head's logits."""
    result: _Array = softmax(features_ND @ head.weight_KD.T + head.bias_K, axis=1)
    return result


def mean_loss(head: FittedHead, features_ND: _Array, labels_N: _Array) -> float:
    """Return the log loss."""
    return float(log_loss(labels_N, probabilities(head, features_ND)))


@pytest.mark.parametrize(
    ("images", "features", "classes", "apart", "weighted", "exact"),
    [
        (60, 90, 4, 3.0, False, True),
        (300, 20, 3, 0.3, True, True),
        (50, 80, 2, 2.0, True, True),
        (400, 30, 4, 0.4, False, False),
    ],
    ids=["separable", "weighted", "two separable", "float32"],
)
def test_equals_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    features: int,
    classes: int,
    apart: float,
    weighted: bool,
    exact: bool,
) -> None:
    """With the same C and standardised features: the same predictions and probabilities."""
    if not exact:
        monkeypatch.setattr(logistic_regression, "_EXACT_NUMBERS", 0)
        monkeypatch.setattr(logistic_regression, "_LOGITS_AT_ONCE", 250)  # several parts
    features_ND, labels_N = drawn(images + 100, features, classes, apart)
    weights_K = np.linspace(0.5, 2, classes, dtype=np.float32) if weighted else None
    split = halves(features_ND, labels_N, images)
    head = fit_head(*split, classes, class_weights_K=weights_K)
    scaler = StandardScaler().fit(split[0].astype(np.float64))
    reference = LogisticRegression(
        C=head.regularization,
        tol=1e-9,
        max_iter=10_000,
        class_weight=None if weights_K is None else dict(enumerate(weights_K.tolist())),
    ).fit(scaler.transform(split[0].astype(np.float64)), split[1])
    expected_NK = reference.predict_proba(scaler.transform(features_ND.astype(np.float64)))
    found_NK = probabilities(head, features_ND)
    np.testing.assert_allclose(found_NK, expected_NK, atol=1e-3)
    ordered_NK = np.sort(expected_NK, 1)
    clear_N = ordered_NK[:, -1] - ordered_NK[:, -2] > 2e-3
    assert clear_N.mean() > 0.9
    assert np.array_equal(found_NK.argmax(1)[clear_N], expected_NK.argmax(1)[clear_N])


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
    hits = probabilities(head, split[2]).argmax(1) == split[3]
    assert head.tried[best].validation_accuracy == pytest.approx(hits.mean())
    assert mean_loss(head, *split[:2]) == pytest.approx(head.tried[best].training_loss, abs=1e-5)
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
        parts = held_out_folds(labels_N, units_N, folds)
        assert len(np.unique(np.concatenate([*parts, []]))) == sum(map(len, parts))
        for rows in parts:
            fitted = np.delete(np.arange(60), rows)
            assert not set(units_N[rows]) & set(units_N[fitted])
            assert set(labels_N[fitted]) == set(labels_N)
        alone = held_out_folds(labels_N, None, folds)
        assert sorted(np.concatenate(alone)) == list(range(60))
        for label in range(4):  # each class is cut in parts of nearly the same size
            sizes = [(labels_N[rows] == label).sum() for rows in alone]
            assert max(sizes) - min(sizes) <= 1
    features_ND = random.normal(size=(60, 5)).astype(np.float32)
    none = features_ND[:0], labels_N[:0]
    head = fit_head(features_ND, labels_N, *none, 4, units_N=labels_N)
    assert (head.regularization, head.held_out_images) == (1.0, 0)
