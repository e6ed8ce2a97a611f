"""Figures of a classifier against scikit-learn, and what holds for every classifier."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import softmax as scipy_softmax
from sklearn import metrics as sklearn_metrics

from patchline.pipeline.errors import DataError
from patchline.pipeline.metrics import classification
from patchline.pipeline.metrics.averages import average_estimates
from patchline.pipeline.metrics.confusion_cells import ConfusionCells
from patchline.pipeline.metrics.intervals import proportion
from tests.pipeline.metrics.classifiers import calibrated, classifiers, predictions

Array = np.ndarray[Any, Any]


@given(
    arrays.arrays(np.float32, (5, 4), elements=st.floats(-1e4, 1e4, width=32)),
    st.floats(0.05, 20),
)
def test_softmax_equals_scipys(logits: Array, temperature: float) -> None:
    """Probabilities equal scipy's, also for logits that would overflow."""
    probabilities = classification.softmax(logits, temperature)
    reference = scipy_softmax(logits.astype(np.float64) / temperature, axis=1)
    assert np.allclose(probabilities, reference, rtol=1e-9, atol=1e-12)


@given(classifiers)
def test_confusion_matrix_equals_scikit_learns(classifier: tuple[Array, Array]) -> None:
    """Rows are the true classes and columns the predicted ones, as in scikit-learn."""
    logits, labels = classifier
    num_classes, predicted = logits.shape[1], logits.argmax(axis=1)
    counts = classification.confusion_matrix(labels, predicted, num_classes)
    reference = sklearn_metrics.confusion_matrix(labels, predicted, labels=range(num_classes))
    assert np.array_equal(counts, reference)


@settings(max_examples=15, deadline=None)
@given(predictions)
def test_figures_equal_scikit_learns(prediction: tuple[Array, Array]) -> None:
    """Every figure of labels and predictions is scikit-learn's, over the classes with images."""
    probabilities, labels = prediction
    predicted, present = probabilities.argmax(axis=1), np.unique(labels)
    found = classification.metrics(probabilities, labels)
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(labels, predicted),
        "balanced_accuracy": sklearn_metrics.recall_score(
            labels, predicted, labels=present, average="macro", zero_division=0
        ),
        "log_loss": sklearn_metrics.log_loss(
            labels, probabilities, labels=range(probabilities.shape[1])
        ),
        "mcc": sklearn_metrics.matthews_corrcoef(labels, predicted),
    }
    for average in ("macro", "weighted"):
        figures = sklearn_metrics.precision_recall_fscore_support(
            labels, predicted, labels=present, average=average, zero_division=0
        )
        for name, figure in zip(("precision", "recall", "f1"), figures, strict=False):
            expected[f"{average}_{name}"] = figure
    for name, figure in expected.items():
        assert found[name].value == pytest.approx(figure, abs=1e-9), name


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_areas_and_the_rest_equal_scikit_learns(num_classes: int) -> None:
    """With images of every class, scikit-learn's own averages agree, one class against the rest."""
    probabilities, labels = calibrated(200, num_classes, seed=num_classes)
    found = classification.metrics(probabilities, labels)
    hot = np.eye(num_classes)[labels]
    expected = {
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(
            labels, probabilities.argmax(axis=1)
        ),
        "roc_auc": sklearn_metrics.roc_auc_score(hot, probabilities, average="macro"),
        "pr_auc": sklearn_metrics.average_precision_score(hot, probabilities, average="macro"),
    }
    if num_classes > 2:
        assert expected["roc_auc"] == pytest.approx(
            sklearn_metrics.roc_auc_score(labels, probabilities, multi_class="ovr")
        )
    if num_classes > 5:
        expected["top5_accuracy"] = sklearn_metrics.top_k_accuracy_score(labels, probabilities, k=5)
    else:
        assert "top5_accuracy" not in found
    for name, figure in expected.items():
        assert found[name].value == pytest.approx(figure), name


@settings(max_examples=15, deadline=None)
@given(predictions)
def test_every_interval_holds_its_value_inside_the_range(prediction: tuple[Array, Array]) -> None:
    """Intervals are finite, contain the figure, have some width, and stay where figures can be."""
    found = classification.metrics(*prediction)
    for name, estimate in found.items():
        assert estimate.low <= estimate.value <= estimate.high, name
        assert estimate.low < estimate.high, name
        assert math.isfinite(estimate.high), name
        assert estimate.n == len(prediction[1])
        if name != "log_loss":
            assert (-1 if name == "mcc" else 0) <= estimate.low, name
            assert estimate.high <= 1, name
        assert name == "mcc" or estimate.low >= 0


def test_intervals_shrink_with_the_number_of_images() -> None:
    """Sixteen times the images make every interval about a quarter as wide."""
    probabilities, labels = calibrated(400, 6, skill=1.2)
    few = classification.metrics(probabilities, labels)
    many = classification.metrics(np.tile(probabilities, (16, 1)), np.tile(labels, 16))
    for name in set(few) - {"ece"}:  # whose bias goes too
        ratio = (few[name].high - few[name].low) / (many[name].high - many[name].low)
        assert ratio == pytest.approx(4, rel=0.2), name


def test_images_of_one_class_have_no_areas_and_any_correlation() -> None:
    """With one class in the sample the areas are left out, and the correlation may be anything."""
    found = classification.metrics(classification.softmax(np.eye(3)[[0, 0, 1]]), np.zeros(3, int))
    assert "roc_auc" not in found
    assert "pr_auc" not in found
    assert (found["mcc"].low, found["mcc"].value, found["mcc"].high) == (-1, 0, 1)
    assert found["accuracy"] == proportion(2, 3)


def test_no_images_are_an_error() -> None:
    """Without images there are no figures, and the sentence says what to do."""
    with pytest.raises(DataError, match=r"0 images to evaluate\. Choose a split"):
        classification.metrics(np.empty((0, 3)), np.empty(0, int))


def test_each_class_is_described_with_its_intervals() -> None:
    """Precision is a share of the predictions, recall one of the images, F1 one of their union."""
    counts = np.array([[6, 2, 0], [1, 9, 0], [0, 4, 0]])
    labels, predicted = (np.repeat(part, counts.ravel()) for part in np.indices((3, 3)))
    probabilities = classification.softmax(np.eye(3)[predicted.ravel()])
    ash, _, cedar = classification.by_class(
        probabilities, labels.ravel(), ("ash", "beech", "cedar")
    )
    assert (ash.name, ash.images, ash.predicted) == ("ash", 8, 7)
    assert (ash.precision, ash.recall) == (proportion(6, 7), proportion(6, 8))
    assert (cedar.precision, cedar.recall) == (proportion(0, 0), proportion(0, 4))
    assert ash.f1.value == pytest.approx(12 / 15)
    assert ash.f1.n == 9
    assert (cedar.f1.value, cedar.f1.n) == (0, 4)


def test_classes_without_images_or_alone_have_no_areas() -> None:
    """There is no area for a class that has no image, or all of them; nor does either crash."""
    probabilities = np.full((4, 3), 1 / 3)
    only, absent, _ = classification.by_class(probabilities, np.zeros(4, int), ("a", "b", "c"))
    assert only.roc_auc is only.pr_auc is absent.roc_auc is absent.pr_auc is None
    assert (absent.recall.low, absent.recall.high, absent.images) == (0, 1, 0)


def test_the_intervals_of_averages_are_those_of_the_whole_matrix() -> None:
    """The cells alone give what influences and priors as K x K numbers gave."""
    generator = np.random.default_rng(3)
    labels = generator.choice(7, 80, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0.0])
    answers = np.where(generator.uniform(size=80) < 0.6, labels, generator.integers(0, 6, 80))
    found = average_estimates(ConfusionCells.of_answers(labels, answers, 7))
    assert {key: (each.low, each.high) for key, each in found.items()} == {
        "balanced_accuracy": pytest.approx((0.52499161, 0.83422658)),
        "macro_recall": pytest.approx((0.52499161, 0.83422658)),
        "macro_precision": pytest.approx((0.49514050, 0.79527641)),
        "weighted_precision": pytest.approx((0.69152943, 0.86006979)),
        "macro_f1": pytest.approx((0.50764734, 0.79398471)),
        "weighted_f1": pytest.approx((0.64883850, 0.83198752)),
        "mcc": pytest.approx((0.50833305, 0.76059003)),
    }
