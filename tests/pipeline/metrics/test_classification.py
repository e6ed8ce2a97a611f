"""Figures of a classifier against scikit-learn, and what holds for every classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import softmax as scipy_softmax
from sklearn import metrics as sklearn_metrics

from pipeline.metrics import classification
from pipeline.metrics.intervals import proportion

Array = np.ndarray[Any, Any]


def sample(n: int, num_classes: int, *, seed: int = 0, skill: float = 1.5) -> tuple[Array, Array]:
    """Return logits (N, K) of a classifier with some skill, and the labels (N)."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, n)
    logits = generator.normal(size=(n, num_classes))
    logits[np.arange(n), labels] += skill
    return logits.astype(np.float32), labels


classifiers = st.builds(
    sample,
    n=st.integers(1, 60),
    num_classes=st.integers(2, 9),
    seed=st.integers(0, 10_000),
    skill=st.floats(0, 4),
)


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
    num_classes, predictions = logits.shape[1], logits.argmax(axis=1)
    counts = classification.confusion_matrix(labels, predictions, num_classes)
    reference = sklearn_metrics.confusion_matrix(labels, predictions, labels=range(num_classes))
    assert np.array_equal(counts, reference)


def test_confusion_matrix_tells_rows_from_columns() -> None:
    """Two images of class 0 called 2 are counted in row 0, column 2."""
    counts = classification.confusion_matrix(np.array([0, 0, 1]), np.array([2, 2, 1]), 3)
    assert counts.tolist() == [[0, 0, 2], [0, 1, 0], [0, 0, 0]]


@given(classifiers)
def test_figures_of_each_class_equal_scikit_learns(classifier: tuple[Array, Array]) -> None:
    """Precision, recall and F1 equal scikit-learn's; what never occurs counts as 0."""
    logits, labels = classifier
    num_classes, predictions = logits.shape[1], logits.argmax(axis=1)
    counts = classification.confusion_matrix(labels, predictions, num_classes)
    reference = sklearn_metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(num_classes), zero_division=0
    )
    figures = classification.precision_recall_f1(counts)
    for ours, theirs in zip(figures, reference, strict=False):
        assert np.allclose(ours, theirs, atol=1e-9)


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
    assert classification.top_k_hits(logits, labels, k) == expected


@given(classifiers, st.floats(0.2, 5))
def test_log_loss_equals_scikit_learns(classifier: tuple[Array, Array], temperature: float) -> None:
    """The mean of the log losses equals scikit-learn's log loss."""
    logits, labels = classifier
    probabilities = classification.softmax(logits, temperature)
    losses = classification.log_losses(probabilities, labels)
    reference = sklearn_metrics.log_loss(labels, probabilities, labels=range(logits.shape[1]))
    assert losses.shape == labels.shape
    assert losses.mean() == pytest.approx(reference, abs=1e-9)


def test_log_loss_of_an_impossible_class_is_finite() -> None:
    """A true class with probability 0 costs much, but not infinity."""
    losses = classification.log_losses(np.array([[1.0, 0.0]]), np.array([1]))
    assert np.isfinite(losses).all()
    assert losses[0] > 30


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([2, 3, 7]))
def test_metrics_equal_scikit_learns(seed: int, num_classes: int) -> None:
    """Each figure of the report equals scikit-learn's, and lies in its interval."""
    logits, labels = sample(50, num_classes, seed=seed)
    predictions = logits.argmax(axis=1)
    probabilities = scipy_softmax(logits.astype(np.float64) / 1.3, axis=1)
    present = np.unique(labels)
    averaged = {"average": "macro", "labels": present, "zero_division": 0}
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(labels, predictions),
        "macro_precision": sklearn_metrics.precision_score(labels, predictions, **averaged),
        "macro_recall": sklearn_metrics.recall_score(labels, predictions, **averaged),
        "macro_f1": sklearn_metrics.f1_score(labels, predictions, **averaged),
        "log_loss": sklearn_metrics.log_loss(labels, probabilities, labels=range(num_classes)),
    }
    if num_classes > 5:
        expected["top5_accuracy"] = sklearn_metrics.top_k_accuracy_score(
            labels, logits, k=5, labels=range(num_classes)
        )
    found = classification.metrics(logits, labels, 1.3)
    assert {name: estimate.value for name, estimate in found.items()} == pytest.approx(expected)
    for estimate in found.values():
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.n == 50


def test_metrics_are_reproducible() -> None:
    """The same logits give the same figures and intervals."""
    logits, labels = sample(40, 3)
    assert classification.metrics(logits, labels, 1) == classification.metrics(logits, labels, 1)


def test_top_five_is_told_only_where_it_means_something() -> None:
    """With five classes or fewer there is no top-5 figure."""
    assert "top5_accuracy" not in classification.metrics(*sample(20, 5), 1.0)
    assert "top5_accuracy" in classification.metrics(*sample(20, 6), 1.0)


def test_temperature_changes_the_log_loss_alone() -> None:
    """A temperature changes how sure the model is, not what it says."""
    logits, labels = sample(60, 4)
    cool, warm = (classification.metrics(logits, labels, t) for t in (1.0, 3.0))
    assert {name for name in cool if cool[name] != warm[name]} == {"log_loss"}


@pytest.mark.parametrize("perfect", [True, False])
def test_perfect_and_hopeless_classifiers_have_the_extreme_figures(perfect: bool) -> None:
    """All right gives 1 everywhere, all wrong gives 0."""
    labels = np.arange(30) % 3
    answers = labels if perfect else (labels + 1) % 3
    found = classification.metrics(np.eye(3)[answers] * 20, labels, 1.0)
    for name in ("accuracy", "macro_precision", "macro_recall", "macro_f1"):
        assert found[name].value == float(perfect)
    assert (found["log_loss"].value < 1e-6) is perfect


def test_macro_figures_leave_out_classes_without_images() -> None:
    """A class that the sample does not hold counts neither for nor against the model."""
    logits = np.eye(3)[[0, 0, 1, 1]] * 9
    found = classification.metrics(logits, np.array([0, 0, 1, 1]), 1.0)
    assert found["macro_recall"].value == found["macro_f1"].value == 1.0


def test_each_class_is_described_with_its_intervals() -> None:
    """Precision is a share of the predictions, recall one of the images, each with its interval."""
    counts = np.array([[6, 2, 0], [1, 9, 0], [0, 4, 0]])
    ash, beech, cedar = classification.by_class(counts, ("ash", "beech", "cedar"))
    assert (ash.name, beech.name, cedar.name) == ("ash", "beech", "cedar")
    assert (ash.images, beech.images, cedar.images) == (8, 10, 4)
    assert (ash.precision, ash.recall) == (proportion(6, 7), proportion(6, 8))
    assert (beech.precision, beech.recall) == (proportion(9, 15), proportion(9, 10))
    assert (cedar.precision, cedar.recall) == (proportion(0, 0), proportion(0, 4))
    assert ash.f1 == pytest.approx(2 * (6 / 7) * (6 / 8) / (6 / 7 + 6 / 8))
    assert cedar.f1 == 0


@pytest.mark.parametrize("temperature", [0.25, 1.0, 2.5, 8.0])
def test_fitted_temperature_is_the_one_that_was_hidden(temperature: float) -> None:
    """Labels drawn from softmax(logits / T) lead back to T."""
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 3, (4000, 5)) * max(1.0, temperature)
    probabilities = scipy_softmax(logits / temperature, axis=1)
    labels = (generator.uniform(size=(4000, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
    assert classification.fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.08)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(0.3, 4))
def test_fitted_temperature_has_the_smallest_loss(seed: int, skill: float) -> None:
    """No other temperature in the range has a smaller log loss."""
    logits, labels = sample(80, 4, seed=seed, skill=skill)

    def loss(temperature: float) -> float:
        probabilities = classification.softmax(logits, temperature)
        return float(classification.log_losses(probabilities, labels).mean())

    best = loss(classification.fit_temperature(logits, labels))
    assert all(best <= loss(other) + 1e-6 for other in np.geomspace(0.05, 20, 80))


def test_temperature_of_a_faultless_model_stays_in_its_range() -> None:
    """A model without a mistake gets the lowest temperature, not an endless one."""
    logits, labels = np.eye(4)[np.arange(40) % 4] * 5, np.arange(40) % 4
    assert 0.05 <= classification.fit_temperature(logits, labels) < 0.2
