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
from patchline.pipeline.metrics.intervals import proportion, with_effective_size
from patchline.pipeline.metrics.losses import log_losses
from patchline.pipeline.metrics.names import METRICS
from tests.pipeline.metrics.classifiers import calibrated, classifiers, predictions

Array = np.ndarray[Any, Any]


@given(
    arrays.arrays(np.float32, (5, 4), elements=st.floats(-1e4, 1e4, width=32)),
    st.floats(0.05, 20),
)
def test_softmax_equals_scipys(logits: Array, temperature: float) -> None:
    """Probabilities equal scipy's, also for logits that would overflow."""
    probabilities = classification.softmax(logits, temperature)
    assert probabilities.dtype == np.float64
    reference = scipy_softmax(logits.astype(np.float64) / temperature, axis=1)
    assert np.allclose(probabilities, reference, rtol=1e-9, atol=1e-12)
    assert np.allclose(probabilities.sum(axis=1), 1)


@given(classifiers)
def test_confusion_matrix_equals_scikit_learns(classifier: tuple[Array, Array]) -> None:
    """Rows are the true classes and columns the predicted ones, as in scikit-learn."""
    logits, labels = classifier
    num_classes, predicted = logits.shape[1], logits.argmax(axis=1)
    counts = classification.confusion_matrix(labels, predicted, num_classes)
    reference = sklearn_metrics.confusion_matrix(labels, predicted, labels=range(num_classes))
    assert np.array_equal(counts, reference)


def test_confusion_matrix_tells_rows_from_columns() -> None:
    """Two images of class 0 called 2 are counted in row 0, column 2."""
    counts = classification.confusion_matrix(np.array([0, 0, 1]), np.array([2, 2, 1]), 3)
    assert counts.tolist() == [[0, 0, 2], [0, 1, 0], [0, 0, 0]]


@given(classifiers, st.integers(1, 9))
def test_top_k_hits_equal_scikit_learns(classifier: tuple[Array, Array], k: int) -> None:
    """The number of top-k hits equals scikit-learn's."""
    logits, labels = classifier
    num_classes = logits.shape[1]
    if k >= num_classes:
        expected = len(labels)
    elif num_classes == 2:  # scikit-learn wants another shape for two classes
        expected = (logits.argmax(axis=1) == labels).sum()
    else:
        expected = sklearn_metrics.top_k_accuracy_score(
            labels, logits, k=k, labels=range(num_classes), normalize=False
        )
    assert classification.top_k_hits(logits, labels, k).sum() == expected


@settings(max_examples=40, deadline=None)
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
    for name, figure in expected.items():
        assert found[name].value == pytest.approx(figure), name


@settings(max_examples=60, deadline=None)
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


def test_keys_come_in_the_order_of_the_report() -> None:
    """Ten classes have all the figures that are named, in that order; five have no top-5."""
    assert list(classification.metrics(*calibrated(60, 10))) == list(METRICS)
    assert "top5_accuracy" not in classification.metrics(*calibrated(20, 5))


def test_the_order_of_the_images_does_not_matter() -> None:
    """The same images in another order have the same metrics and intervals, twice over too."""
    probabilities, labels = calibrated(80, 4)
    other = np.random.default_rng(3).permutation(80)
    first = classification.metrics(probabilities, labels)
    assert first == classification.metrics(probabilities, labels)
    for name, estimate in classification.metrics(probabilities[other], labels[other]).items():
        found, expected = estimate.model_dump(), first[name].model_dump()
        assert found == pytest.approx(expected, abs=1e-9), name


def test_intervals_shrink_with_the_number_of_images() -> None:
    """Sixteen times the images make every interval about a quarter as wide."""
    probabilities, labels = calibrated(400, 6, skill=1.2)
    few = classification.metrics(probabilities, labels)
    many = classification.metrics(np.tile(probabilities, (16, 1)), np.tile(labels, 16))
    for name in set(few) - {"ece"}:  # whose bias goes too
        ratio = (few[name].high - few[name].low) / (many[name].high - many[name].low)
        assert ratio == pytest.approx(4, rel=0.2), name


@pytest.mark.parametrize("perfect", [True, False])
def test_perfect_and_hopeless_classifiers_have_the_extreme_figures(perfect: bool) -> None:
    """All right gives 1 everywhere, all wrong gives 0, and neither is taken for certain."""
    labels = np.arange(30) % 3
    answers = labels if perfect else (labels + 1) % 3
    found = classification.metrics(classification.softmax(np.eye(3)[answers] * 20), labels)
    for name in ("accuracy", "balanced_accuracy", "macro_precision", "macro_f1", "weighted_f1"):
        assert found[name].value == float(perfect)
        assert 0.05 < found[name].high - found[name].low < 0.3
    assert (found["log_loss"].value < 1e-6) is perfect
    assert found["log_loss"].high > 0.1
    assert (found["mcc"].value == 1) is perfect


def test_macro_metrics_leave_out_classes_without_images() -> None:
    """A class that the sample does not hold counts neither for nor against the model."""
    probabilities = classification.softmax(np.eye(3)[[0, 0, 1, 1]] * 9)
    found = classification.metrics(probabilities, np.array([0, 0, 1, 1]))
    for name in ("macro_recall", "macro_f1", "macro_precision", "roc_auc", "pr_auc"):
        assert found[name].value == 1.0


def test_images_of_one_class_have_no_areas_and_any_correlation() -> None:
    """With one class in the sample the areas are left out, and the correlation may be anything."""
    found = classification.metrics(classification.softmax(np.eye(3)[[0, 0, 1]]), np.zeros(3, int))
    assert "roc_auc" not in found
    assert "pr_auc" not in found
    assert (found["mcc"].low, found["mcc"].value, found["mcc"].high) == (-1, 0, 1)
    assert found["accuracy"] == proportion(2, 3)


def test_images_of_one_class_still_have_a_recall() -> None:
    """Twenty images of one class, all right, have the recall of twenty images."""
    found = classification.metrics(classification.softmax(np.eye(3)[[0] * 20]), np.zeros(20, int))
    assert found["balanced_accuracy"].low == pytest.approx(found["accuracy"].low, abs=0.01)


def test_no_images_are_an_error() -> None:
    """Without images there are no figures, and the sentence says what to do."""
    with pytest.raises(DataError, match=r"0 images to evaluate\. Choose a split"):
        classification.metrics(np.empty((0, 3)), np.empty(0, int))


def test_each_class_is_described_with_its_intervals() -> None:
    """Precision is a share of the predictions, recall one of the images, F1 one of their union."""
    counts = np.array([[6, 2, 0], [1, 9, 0], [0, 4, 0]])
    labels, predicted = (np.repeat(part, counts.ravel()) for part in np.indices((3, 3)))
    probabilities = classification.softmax(np.eye(3)[predicted.ravel()])
    ash, beech, cedar = classification.by_class(
        probabilities, labels.ravel(), ("ash", "beech", "cedar")
    )
    assert (ash.name, ash.images, ash.predicted) == ("ash", 8, 7)
    assert (beech.name, beech.images, beech.predicted) == ("beech", 10, 15)
    assert (cedar.name, cedar.images, cedar.predicted) == ("cedar", 4, 0)
    assert (ash.precision, ash.recall) == (proportion(6, 7), proportion(6, 8))
    assert (beech.precision, beech.recall) == (proportion(9, 15), proportion(9, 10))
    assert (cedar.precision, cedar.recall) == (proportion(0, 0), proportion(0, 4))
    assert ash.f1.value == pytest.approx(2 * (6 / 7) * (6 / 8) / (6 / 7 + 6 / 8))
    assert (ash.f1.n, cedar.f1.value, cedar.f1.n) == (9, 0, 4)
    assert ash.roc_auc is not None
    assert ash.roc_auc.n == 22


def test_classes_without_images_or_alone_have_no_areas() -> None:
    """There is no area for a class that has no image, or all of them; nor does either crash."""
    probabilities = np.full((4, 3), 1 / 3)
    only, absent, _ = classification.by_class(probabilities, np.zeros(4, int), ("a", "b", "c"))
    assert only.roc_auc is only.pr_auc is absent.roc_auc is absent.pr_auc is None
    assert (absent.recall.low, absent.recall.high, absent.images) == (0, 1, 0)


@given(predictions)
@settings(max_examples=20, deadline=None)
def test_log_loss_is_the_mean_surprise(prediction: tuple[Array, Array]) -> None:
    """Each sample's loss is the negative logarithm of the probability of its class."""
    probabilities, labels = prediction
    expected = [-math.log(row[label]) for row, label in zip(probabilities, labels, strict=True)]
    assert np.allclose(log_losses(probabilities, labels), expected)


def test_averages_need_no_matrix_and_say_the_same() -> None:
    """The intervals from the cells alone are those of influences and priors as K x K numbers."""
    generator = np.random.default_rng(3)
    labels = generator.choice(7, 80, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0.0])
    answers = np.where(generator.uniform(size=80) < 0.6, labels, generator.integers(0, 6, 80))
    counts = classification.confusion_matrix(labels, answers, 7).astype(float)
    images, hit_share = counts.sum(axis=1), (0.5 + np.trace(counts) / counts.sum()) / 2
    others = (images + counts.sum(axis=0) + 1e-9) * (1 - np.eye(7))
    prior = (1 - hit_share) * others / others.sum(axis=1, keepdims=True) + hit_share * np.eye(7)
    drawn = (images / (images + 3))[:, None] * (counts + 3 * prior)
    shares = drawn / drawn.sum()
    weights, recall = (images > 0) / (images > 0).sum(), np.diag(drawn) / np.maximum(images, 1e-12)
    pull = weights * drawn.sum() / np.maximum(images, 1e-12)
    moved = {"balanced_accuracy": (np.eye(7) - recall[:, None]) * pull[:, None]}
    true, called = shares.sum(axis=1), shares.sum(axis=0)
    of_true, of_called = 1 - true @ true, 1 - called @ called
    root = np.sqrt(of_true * of_called)
    mcc = (np.trace(shares) - true @ called) / root
    moved["mcc"] = (np.eye(7) - called[:, None] - true[None, :]) / root
    moved["mcc"] += mcc * (true[:, None] / of_true + called[None, :] / of_called)
    moved["mcc"] -= (shares * moved["mcc"]).sum()
    smooth = {"balanced_accuracy": (float(recall @ weights), 0.0), "mcc": (float(mcc), -1.0)}
    found = average_estimates(ConfusionCells.of_answers(labels, answers, 7))
    for key, influence in moved.items():
        value, least = smooth[key]
        variance = (drawn * influence**2).sum() / drawn.sum() ** 2
        expected = with_effective_size(
            found[key].value,
            n=80,
            effective_n=(value - least) * (1 - value) / variance,
            ends=(least, 1.0),
        )
        assert found[key].model_dump() == pytest.approx(expected.model_dump(), abs=1e-9)
