"""The metrics of label sets are those of scikit-learn, and their intervals hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    coverage_error,
    f1_score,
    label_ranking_loss,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from patchline.pipeline.evaluation.metrics.mean_average_precision import mean_average_precision
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import (
    by_label,
    compare_map,
    label_set_map,
    macro_f1,
    multi_label_metrics,
)
from patchline.pipeline.evaluation.metrics.multi_label.resampling import (
    compute_drawn_map,
    rankings_of,
)
from patchline.pipeline.evaluation.metrics.names import MULTI_LABEL_METRICS

Array = np.ndarray[Any, Any]


def draw(images: int, labels: int, *, seed: int, digits: int = 9) -> tuple[Array, Array]:
    """Return probabilities and labels, the first label the rarest; some images have none."""
    generator = np.random.default_rng(seed)
    truth = generator.random((images, labels)) < np.linspace(0.1, 0.6, labels)
    scores = 0.6 * generator.random((images, labels)) + 0.4 * truth
    return scores.round(digits), truth.astype(np.uint8)


@pytest.mark.parametrize(("digits", "labels"), [(1, 7), (9, 2)])
def test_values_are_those_of_scikit_learn(digits: int, labels: int) -> None:
    """With ties and without them."""
    scores, truth = draw(300, labels, seed=labels, digits=digits)
    predicted = (scores >= 0.5).astype(np.uint8)
    found = multi_label_metrics(scores, truth, predicted)
    assert list(found) == list(MULTI_LABEL_METRICS)
    expected = {
        "mAP": average_precision_score(truth, scores, average="macro"),
        "micro_mAP": average_precision_score(truth, scores, average="micro"),
        "macro_f1": f1_score(truth, predicted, average="macro"),
        "micro_f1": f1_score(truth, predicted, average="micro"),
        "samples_f1": f1_score(truth, predicted, average="samples", zero_division=1.0),
        "macro_precision": precision_score(truth, predicted, average="macro"),
        "macro_recall": recall_score(truth, predicted, average="macro"),
        "exact_match": accuracy_score(truth, predicted),
        "ranking_loss": label_ranking_loss(truth, scores),
        "coverage_error": coverage_error(truth, scores),
        "log_loss": log_loss(truth.ravel(), np.clip(scores, 1e-15, 1 - 1e-15).ravel()),
    }
    for key, value in expected.items():
        assert found[key].value == pytest.approx(value, abs=1e-9), key
        assert found[key].low <= found[key].value <= found[key].high
    assert label_set_map(scores, truth) == found["mAP"]
    assert macro_f1(truth, predicted) == pytest.approx(expected["macro_f1"], abs=1e-12)


def test_each_label_has_the_values_of_scikit_learn() -> None:
    """Average precision, area under the ROC curve, precision, recall and F1."""
    scores, truth = draw(200, 4, seed=3, digits=2)
    predicted = (scores >= 0.4).astype(np.uint8)
    for k, row in enumerate(by_label(scores, truth, predicted, list("abcd"), [0.4] * 4)):
        pair = truth[:, k], predicted[:, k]
        values = (row.average_precision, row.roc_auc, row.precision, row.recall, row.f1)
        expected = (
            average_precision_score(truth[:, k], scores[:, k]),
            roc_auc_score(truth[:, k], scores[:, k]),
            precision_score(*pair),
            recall_score(*pair),
            f1_score(*pair),
        )
        assert [each.value for each in values if each] == pytest.approx(expected, abs=1e-9)
        assert (row.images, row.predicted) == (truth[:, k].sum(), predicted[:, k].sum())


def test_a_label_that_no_image_has_is_unknown_and_in_no_mean() -> None:
    """Never 0, which scikit-learn makes of it."""
    scores, truth = draw(150, 4, seed=4)
    truth[:, 2] = 0
    predicted, others = (scores >= 0.5).astype(np.uint8), [0, 1, 3]
    found = multi_label_metrics(scores, truth, predicted)
    alone = multi_label_metrics(scores[:, others], truth[:, others], predicted[:, others])
    for key in ("mAP", "macro_f1", "macro_recall"):
        assert found[key].value == pytest.approx(alone[key].value, abs=1e-12)
    row = by_label(scores, truth, predicted, list("abcd"), [0.5] * 4)[2]
    assert (row.average_precision, row.roc_auc, row.recall, row.f1) == (None, None, None, None)
    assert row.precision is not None  # of what was predicted, nothing is right
    assert row.precision.value == row.images == 0


def test_a_label_of_all_images_has_no_average_precision_and_is_in_no_map() -> None:
    """Nor in that of paired tests; scikit-learn counts it as 1."""
    scores, truth = draw(150, 3, seed=4)
    truth[:, 1] = 1
    expected = average_precision_score(truth[:, [0, 2]], scores[:, [0, 2]])
    found = multi_label_metrics(scores, truth, truth)
    paired = compare_map(truth, scores, scores, draws=2)
    for value in (found["mAP"].value, label_set_map(scores, truth).value, paired.b):
        assert value == pytest.approx(expected, abs=1e-12)
    row = by_label(scores, truth, truth, list("abc"), [0.5] * 3)[1]
    assert (row.average_precision, row.roc_auc, row.f1 is None) == (None, None, False)
    alone = multi_label_metrics(scores[:, 1:2], truth[:, 1:2], truth[:, 1:2])
    assert set(MULTI_LABEL_METRICS) - set(alone) == {"mAP", "micro_mAP"}
    assert compare_map(truth[:, 1:2], scores[:, 1:2], scores[:, 1:2]).p_value == 1


def test_no_error_in_few_images_is_no_certainty() -> None:
    """The interval of a perfect result is open below."""
    _, truth = draw(25, 3, seed=6)
    found = multi_label_metrics(truth.astype(float), truth, truth)
    for key in ("mAP", "micro_mAP", "macro_f1", "micro_f1", "samples_f1", "exact_match"):
        assert found[key].value == 1.0
        assert 0.6 < found[key].low < 0.97, key
    assert found["ranking_loss"].value == 0.0
    assert 0.03 < found["ranking_loss"].high < 0.4


def test_the_map_of_many_labels_with_three_positives_each_is_not_called_certain() -> None:
    """At least 93% of 30 intervals hold it, although each label's value is too high.

    The mean over twenty labels has the bias of each, but a fraction of their variance.
    """
    shape, of_label, skill, held = (300, 20), 0.01, 1.5, 0
    generator = np.random.default_rng(2)
    many = generator.random((200_000, 1)) < of_label
    truth = average_precision_score(many, skill * many + generator.normal(size=many.shape))
    for seed in range(30):
        labels = (generator.random(shape) < of_label).astype(np.uint8)
        found = label_set_map(skill * labels + generator.normal(size=shape), labels, seed=seed)
        held += found.low <= truth <= found.high
    assert held >= 0.93 * 30


def test_a_draw_of_every_image_once_has_the_map_of_all() -> None:
    """Of the labels that some images have; nothing is known without such a label."""
    scores, labels = draw(50, 3, seed=1)
    labels[:, 1] = 1
    rankings = rankings_of(scores, labels)
    assert len(rankings) == 2
    once = np.ones((50, 2), np.uint8)
    expected = mean_average_precision(scores, labels).value
    assert compute_drawn_map(rankings, once) == pytest.approx([expected, expected])
    assert np.isnan(compute_drawn_map([], once)).all()
