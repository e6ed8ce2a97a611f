"""The head of sets equals scikit-learn's OneVsRestClassifier, with the C of the best mAP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from patchline.pipeline.probing import logistic_regression
from patchline.pipeline.probing.linear_fit import REGULARIZATIONS, FittedHead, fit_head

_Array = np.ndarray[Any, Any]


def _drawn(images: int, features: int, labels: int, *, seed: int = 0) -> tuple[_Array, _Array]:
    """Return correlated features with an offset, and sets of labels, rare ones among them."""
    random = np.random.default_rng(seed)
    features_ND = random.normal(size=(images, features))
    logits_NK = features_ND @ random.normal(size=(features, labels))
    noisy_NK = logits_NK + 2 * random.normal(size=(images, labels))
    sets_NK = noisy_NK > np.linspace(0, 5, labels)
    mixed_DD = random.normal(size=(features, features)) / np.arange(1, features + 1)[:, None]
    return (features_ND @ mixed_DD + 3).astype(np.float32), sets_NK.astype(np.uint8)


def _scikit_learn(features_ND: _Array, sets_NK: _Array, c_used: float, tested_ND: _Array) -> _Array:
    """Return the probabilities of scikit-learn's classifier, on standardised features."""
    scaler = StandardScaler().fit(features_ND.astype(np.float64))
    one = LogisticRegression(C=c_used, solver="newton-cholesky", tol=1e-10)
    scaled = [scaler.transform(each.astype(np.float64)) for each in (features_ND, tested_ND)]
    fitted = OneVsRestClassifier(one).fit(scaled[0], sets_NK)
    probabilities_NK: _Array = fitted.predict_proba(scaled[1])
    return probabilities_NK


def _probabilities(head: FittedHead, features_ND: _Array) -> _Array:
    result: _Array = expit(features_ND.astype(np.float64) @ head.weight_KD.T + head.bias_K)
    return result


@pytest.mark.parametrize("regularization", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize(
    ("images", "features", "exact"), [(400, 20, True), (90, 120, True), (400, 20, False)]
)
def test_the_fit_is_scikit_learns(
    images: int,
    features: int,
    regularization: float,
    exact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more images than features or fewer, in float64 and float32."""
    if not exact:
        monkeypatch.setattr(logistic_regression, "_EXACT_NUMBERS", 0)
    features_ND, sets_NK = _drawn(images, features, 6)
    nothing = features_ND[:0], sets_NK[:0]
    head = fit_head(features_ND, sets_NK, *nothing, 6, regularization=regularization)
    expected_NK = _scikit_learn(features_ND, sets_NK, regularization, features_ND)
    np.testing.assert_allclose(
        _probabilities(head, features_ND), expected_NK, atol=1e-5 if exact else 1e-3
    )


def test_c_is_that_of_the_largest_map_on_validation() -> None:
    """Every tried value has scikit-learn's mAP, and the first of the largest is taken."""
    features_ND, sets_NK = _drawn(500, 60, 5)
    training = features_ND[:200], sets_NK[:200]
    tested_ND, tested_NK = features_ND[200:], sets_NK[200:]
    head = fit_head(*training, tested_ND, tested_NK, 5)
    maps = []
    for each in head.tried:
        assert each.validation_accuracy is None
        predicted = _scikit_learn(*training, each.regularization, tested_ND)
        maps.append(average_precision_score(tested_NK, predicted))
        assert each.validation_map == pytest.approx(maps[-1], abs=2e-4)
    assert head.regularization == head.tried[int(np.argmax(maps))].regularization
    assert REGULARIZATIONS[0] < head.regularization < REGULARIZATIONS[-1]
    assert (head.validation_images, head.held_out_images) == (300, 0)


def test_a_label_of_no_image_is_predicted_for_none_and_harms_no_other() -> None:
    """Its probability is about that of half an image among all."""
    features_ND, sets_NK = _drawn(200, 10, 3)
    without = sets_NK.copy()
    without[:, 1] = 0
    given = features_ND[:0], sets_NK[:0], 3
    whole, part = (
        fit_head(features_ND, each, *given, regularization=1.0) for each in (sets_NK, without)
    )
    assert _probabilities(part, features_ND)[:, 1] == pytest.approx(0.5 / 201, abs=1e-3)
    np.testing.assert_allclose(part.weight_KD[0], whole.weight_KD[0], atol=1e-4)


def test_weights_of_present_labels_are_sample_weights() -> None:
    """As scikit-learn's fit of one label whose positives count three times."""
    features_ND, sets_NK = _drawn(300, 12, 2)
    nothing = features_ND[:0], sets_NK[:0]
    weights_K = np.array([3.0, 1.0], np.float32)
    head = fit_head(features_ND, sets_NK, *nothing, 2, class_weights_K=weights_K, regularization=1)
    scaled = StandardScaler().fit_transform(features_ND.astype(np.float64))
    sample_weights = np.where(sets_NK[:, 0], 3.0, 1.0)
    fitted = LogisticRegression(C=1.0, max_iter=20_000, tol=1e-10).fit(
        scaled, sets_NK[:, 0], sample_weight=sample_weights
    )
    expected = fitted.predict_proba(scaled)[:, 1]
    np.testing.assert_allclose(_probabilities(head, features_ND)[:, 0], expected, atol=1e-4)
