"""Figures of a classifier against scikit-learn, and what holds for every classifier."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import softmax as scipy_softmax
from sklearn import metrics as sklearn_metrics

from patchline.pipeline.evaluation.metrics import classification
from patchline.pipeline.evaluation.metrics.averages import average_estimates
from patchline.pipeline.evaluation.metrics.confusion_matrix import ConfusionCells
from patchline.pipeline.evaluation.metrics.intervals import proportion
from tests.pipeline.evaluation.metrics.classifiers import Array, classifiers, predictions


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
    cells = ConfusionCells.of_answers(labels, predicted, num_classes)
    counts = cells.part(np.arange(num_classes))
    reference = sklearn_metrics.confusion_matrix(labels, predicted, labels=range(num_classes))
    assert np.array_equal(counts, reference)


@settings(max_examples=15)
@given(predictions)
def test_figures_equal_scikit_learns(prediction: tuple[Array, Array]) -> None:
    """Every figure is scikit-learn's, over the classes with images."""
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
    num_classes = probabilities.shape[1]
    if len(present) == num_classes:
        hot = np.eye(num_classes)[labels]
        expected["roc_auc"] = sklearn_metrics.roc_auc_score(hot, probabilities)
        expected["pr_auc"] = sklearn_metrics.average_precision_score(hot, probabilities)
    if num_classes > 5:
        expected["top5_accuracy"] = sklearn_metrics.top_k_accuracy_score(
            labels, probabilities, k=5, labels=range(num_classes)
        )
    assert ("top5_accuracy" in found) == (num_classes > 5)
    for average in ("macro", "weighted"):
        figures = sklearn_metrics.precision_recall_fscore_support(
            labels, predicted, labels=present, average=average, zero_division=0
        )
        for name, figure in zip(("precision", "recall", "f1"), figures, strict=False):
            expected[f"{average}_{name}"] = figure
    for name, figure in expected.items():
        assert found[name].value == pytest.approx(figure, abs=1e-9), name


@settings(max_examples=15)
@given(predictions)
def test_every_interval_holds_its_value_inside_the_range(prediction: tuple[Array, Array]) -> None:
    """Intervals are finite, contain the figure, have some width, and stay where figures can be."""
    for name, estimate in classification.metrics(*prediction).items():
        assert estimate.low <= estimate.value <= estimate.high, name
        assert estimate.low < estimate.high, name
        assert math.isfinite(estimate.high), name
        assert estimate.n == len(prediction[1])
        if name != "log_loss":
            assert (-1 if name == "mcc" else 0) <= estimate.low, name
            assert estimate.high <= 1, name
        assert name == "mcc" or estimate.low >= 0


def test_images_of_one_class_have_no_areas_and_any_correlation() -> None:
    """With one class in the sample the areas are left out, and the correlation may be anything."""
    found = classification.metrics(classification.softmax(np.eye(3)[[0, 0, 1]]), np.zeros(3, int))
    assert "roc_auc" not in found
    assert "pr_auc" not in found
    assert (found["mcc"].low, found["mcc"].value, found["mcc"].high) == (-1, 0, 1)
    assert found["accuracy"] == proportion(2, 3)


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
