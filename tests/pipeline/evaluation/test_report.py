"""The report of predictions: its metrics are those of the probabilities, whatever the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.config import GALLERY_SIZE
from patchline.pipeline.evaluation.metrics import classification
from patchline.pipeline.evaluation.metrics.calibration import (
    TopProbabilities,
    calibration_error_of,
    reliability_of,
)
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.evaluation.predictions import COLUMNS, Predictions, with_probabilities
from patchline.pipeline.evaluation.report import EvaluationReport, ReportSubject, evaluate
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import (
    made_of,
    predicted_rows,
    random_predictions,
)

CLASSES = ("across", "down", "rising")
GALLERIES = ("most_confident_errors", "least_certain", "likely_label_errors")


def _evaluate(predictions: Predictions, **settings: Any) -> EvaluationReport:
    classes = tuple(f"class {k}" for k in range(predictions.probabilities_NK.shape[1]))
    given = ReportSubject("photos", classes, "test", "0123abcd")
    of_subject = {key: settings.pop(key) for key in set(settings) & set(given._fields)}
    fit = settings.pop("calibration", TemperatureFit(temperature=1.0, state="fitted"))
    return evaluate(predictions, given._replace(**of_subject), fit, **settings)


def _check(report: EvaluationReport, predictions: Predictions) -> None:
    """Compare a report with scikit-learn and with the functions that its parts come from."""
    probabilities, labels = predictions.probabilities_NK, predictions.labels
    answers, classes = probabilities.argmax(axis=1), list(range(len(report.classes)))
    accuracy = reference.accuracy_score(labels, answers)
    assert report.metrics[f"{report.split}/accuracy"] == report.accuracy
    assert report.accuracy.value == pytest.approx(accuracy)
    confusion = reference.confusion_matrix(labels, answers, labels=classes)
    assert np.array_equal(np.array(report.confusion), confusion)
    assert report.errors == int((answers != labels).sum())
    assert report.by_class == classification.by_class(probabilities, labels, report.classes)
    assert report.reliability == reliability_of(TopProbabilities.of(probabilities, labels))
    before = report.calibration.uncalibrated_probabilities(probabilities)
    assert report.uncalibrated_reliability == reliability_of(TopProbabilities.of(before, labels))
    assert report.uncalibrated_ece == calibration_error_of(TopProbabilities.of(before, labels))
    for image in (each for name in GALLERIES for each in getattr(report, name)):
        place = int(np.flatnonzero(predictions.positions == image.position)[0])
        assert image.path == predictions.table["path"].iloc[place]
        assert image.label == report.classes[labels[place]]
        assert image.predicted == report.classes[answers[place]]
    assert len(report.most_confident_errors) == min(report.errors, 24)
    assert len(report.least_certain) == min(report.images, 24)


def test_the_report_of_a_real_run_comes_out_again(finished_run: Run) -> None:
    """The run's report is that of its saved predictions, and its summary has the same metrics."""
    folder = Path(str(finished_run.summary["report"])).parent
    report = EvaluationReport.model_validate_json((folder / "report.json").read_text())
    predictions = Predictions.of(
        pd.read_parquet(folder / "predictions.parquet").query("split == 'test'")
    )
    _check(report, predictions)
    keys = ("name", "classes", "data_fingerprint", "calibration", "computed_by")
    again = _evaluate(predictions, **{key: getattr(report, key) for key in keys})
    others = ("covering_test", "provenance", "answers")  # of what else the run has computed
    assert again.model_copy(update={name: getattr(report, name) for name in others}) == report
    said = {key: estimate["value"] for key, estimate in finished_run.summary["metrics"].items()}
    assert said == {key: estimate.value for key, estimate in report.metrics.items()}


@pytest.mark.parametrize(
    ("count", "num_classes", "skill"),
    [(80, 3, 0.0), (60, 3, 30.0), (150, 120, 6.0)],
    ids=["no skill", "no errors", "classes without images"],
)
def test_the_report_of_any_predictions(count: int, num_classes: int, skill: float) -> None:
    """With few and many classes, no skill and no errors, the report says what is in the table."""
    predictions = random_predictions(count, num_classes, skill=skill)
    fit = TemperatureFit(temperature=1.7, state="fitted")
    report = _evaluate(predictions, calibration=fit, split="validation")
    _check(report, predictions)
    absent = [figures.name for figures in report.by_class if figures.images == 0]
    missing = set(range(num_classes)) - set(predictions.labels.tolist())
    assert absent == [f"class {k}" for k in sorted(missing)]


def test_a_report_says_what_a_bias_costs_and_which_class_is_off() -> None:
    """The recall of equal weights stands beside that of labels; a class that is off is no claim."""
    generator, shares = np.random.default_rng(0), (0.8, 0.14, 0.06)
    labels = generator.choice(3, 2000, p=shares)
    scores = generator.normal(size=(2000, 3))
    scores[np.arange(2000), labels] += 1.5
    balanced = classification.softmax(1.5 * scores)
    bias = tuple(np.log(shares).tolist())
    fit, plain = (TemperatureFit(temperature=1.0, state="fitted", bias=b) for b in (bias, ()))
    right_NK = classification.softmax(fit.logits(1.5 * scores))
    report, claimed = (
        _evaluate(made_of(each, labels.tolist()), calibration=own)
        for each, own in ((right_NK, fit), (balanced, plain))
    )
    assert report.calibration.is_calibrated
    expected = reference.recall_score(labels, balanced.argmax(axis=1), average=None)
    assert [row.balanced_recall for row in report.by_class] == pytest.approx(expected)
    assert f"{np.mean(expected):.1%} and {expected[2]:.1%}" in report.note_on_balance
    assert not claimed.calibration.is_calibrated
    assert "'class 2' has a mean probability of" in claimed.calibration.sentence()
    assert claimed.note_on_balance == ""


def test_no_image_at_all_is_an_error() -> None:
    """A split without images has no report."""
    nothing = Predictions.of(random_predictions(10, 3).table[:0])
    with pytest.raises(DataError, match="no train image"):
        _evaluate(nothing, split="train")


def test_a_gallery_has_a_limited_size() -> None:
    """Of many images, `GALLERY_SIZE` are kept, and all errors and doubts are counted."""
    report = _evaluate(random_predictions(300, 5, skill=0.5))
    assert [len(getattr(report, name)) for name in GALLERIES] == [GALLERY_SIZE] * 3
    assert min(report.errors, report.suspected_labels) > GALLERY_SIZE


def test_copies_of_images_make_nothing_more_certain() -> None:
    """Ten frames of each patient give the intervals of one, but for few degrees of freedom."""
    once = random_predictions(60, 3)
    ten = pd.concat([once.table.assign(group=once.table["path"])] * 10, ignore_index=True)
    ten["path"] = [f"{path} {number}" for number, path in enumerate(ten["path"])]
    grouped, alone = (_evaluate(Predictions.of(each)) for each in (ten, ten.assign(group="")))
    expected = _evaluate(once)
    assert (grouped.groups, alone.groups, alone.groups_note) == (60, None, "")
    assert grouped.groups_note.startswith("these 600 images form 60 groups: the intervals take")

    def widths(report: EvaluationReport) -> dict[str, float]:
        found = dict(report.metrics)
        for row in report.by_class:
            keys = ("precision", "recall", "f1", "roc_auc", "pr_auc")
            found |= {f"{row.name} {key}": getattr(row, key) for key in keys}
        return {key: each.high - each.low for key, each in found.items()}

    assert widths(grouped) == pytest.approx(widths(expected), rel=0.25)
    assert all(each < 0.6 * widths(grouped)[key] for key, each in widths(alone).items())
    for found, one_bin in zip(grouped.reliability, expected.reliability, strict=True):
        width = one_bin.accuracy.high - one_bin.accuracy.low
        assert found.accuracy.high - found.accuracy.low >= 0.99 * width


def test_a_model_that_is_no_better_than_one_answer_is_said() -> None:
    """A report warns when naming the commonest class for every image would do as well."""
    labels = [0] * 60 + [1] * 40
    lazy = _evaluate(made_of(np.tile([0.6, 0.4], (100, 1)), labels))
    assert "not clearly better than always predicting 'class 0'" in lazy.warning
    name, share = lazy.commonest
    assert name == "class 0"
    assert share == pytest.approx(0.6)
    assert _evaluate(made_of(np.eye(2)[labels] * 0.8 + 0.1, labels)).warning == ""


def test_the_table_of_a_run_has_the_promised_columns(finished_run: Run) -> None:
    """Columns, classes and probabilities of a real run fit together."""
    found = Predictions.of(
        pd.read_parquet(Path(finished_run.summary["report"]).with_name("predictions.parquet"))
    )
    table, probabilities = found.table, found.probabilities_NK
    assert (list(table), probabilities.shape) == ([*COLUMNS, "row", "logits"], (len(table), 3))
    assert [CLASSES[each] for each in probabilities.argmax(axis=1)] == list(table["predicted"])
    assert probabilities.max(axis=1) == pytest.approx(table["probability"].to_numpy())


def test_labels_that_the_model_does_not_know_are_named() -> None:
    """With the classes that it knows; of many, five are named and the others counted."""
    rows = predicted_rows(("across", *(f"kind {k}" for k in range(9))))
    with pytest.raises(DataError, match="kind 4 and 4 more") as raised:
        with_probabilities(rows, CLASSES, np.full((len(rows), 3), 1 / 3))
    assert "across, down, rising" in str(raised.value)
