"""The report of predictions: its metrics are those of the probabilities, whatever the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import EvaluationReport, evaluate
from patchline.pipeline.metrics import classification
from patchline.pipeline.metrics.calibration import (
    expected_calibration_error,
    reliability,
)
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.metrics.temperature import TemperatureFit
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import made_of, random_predictions, report_of

CLASSES = ("across", "down", "rising", "falling")
GALLERIES = ("most_confident_errors", "least_certain", "likely_label_errors")


def _evaluate(predictions: Predictions, **settings: Any) -> EvaluationReport:
    classes = tuple(f"class {k}" for k in range(predictions.probabilities_NK.shape[1]))
    given: dict[str, Any] = {
        "name": "photos",
        "classes": classes,
        "split": "test",
        "data_fingerprint": "0123abcd",
        "calibration": TemperatureFit(temperature=1.0, state="fitted"),
    }
    return evaluate(predictions, **{**given, **settings})


def _check(report: EvaluationReport, predictions: Predictions) -> None:
    """Compare a report with scikit-learn and with the functions that its parts come from."""
    probabilities, labels = predictions.probabilities_NK, predictions.labels_N
    answers, classes = probabilities.argmax(axis=1), list(range(len(report.classes)))
    present = sorted(set(labels.tolist()))
    expected = {
        "accuracy": reference.accuracy_score(labels, answers),
        "macro_f1": reference.f1_score(
            labels, answers, labels=present, average="macro", zero_division=0
        ),
        "log_loss": reference.log_loss(labels, probabilities, labels=classes),
    }
    for key, value in expected.items():
        assert report.metrics[f"{report.split}/{key}"].value == pytest.approx(value, abs=1e-6)
    for estimate in report.metrics.values():
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.n == len(labels) == report.images
    confusion = reference.confusion_matrix(labels, answers, labels=classes)
    assert np.array_equal(np.array(report.confusion), confusion)
    assert report.errors == int((answers != labels).sum())
    assert report.by_class == classification.by_class(probabilities, labels, report.classes)
    assert report.reliability == reliability(probabilities, labels)
    before = report.calibration.uncalibrated_probabilities(probabilities)
    assert report.uncalibrated_reliability == reliability(before, labels)
    assert report.uncalibrated_ece == expected_calibration_error(before, labels)
    for name in GALLERIES:
        for image in getattr(report, name):
            place = int(np.flatnonzero(predictions.positions == image.position)[0])
            assert image.path == predictions.paths[place]
            assert image.label == report.classes[labels[place]]
            assert image.predicted == report.classes[answers[place]]
    assert len(report.most_confident_errors) == min(report.errors, 24)
    assert len(report.least_certain) == min(report.images, 24)


def test_the_report_of_a_real_run_comes_out_again(finished_run: Run) -> None:
    """The run's report is that of its saved predictions, and its summary has the same metrics."""
    folder = Path(str(finished_run.summary["report"])).parent
    report = EvaluationReport.model_validate_json((folder / "report.json").read_text())
    predictions = Predictions.load(folder / "predictions.parquet", "test")
    _check(report, predictions)
    again = evaluate(
        predictions,
        name=report.name,
        classes=report.classes,
        split="test",
        data_fingerprint=report.data_fingerprint,
        calibration=report.calibration,
        computed_by=report.computed_by,
    )
    others = ("covering_test", "provenance", "answers")  # of what else the run has computed
    found = {name: getattr(report, name) for name in others}
    assert again.model_copy(update=found) == report
    said = {key: estimate["value"] for key, estimate in finished_run.summary["metrics"].items()}
    assert said == {key: estimate.value for key, estimate in report.metrics.items()}


@pytest.mark.parametrize(
    ("count", "num_classes", "skill"),
    [(300, 2, 1.0), (300, 7, 2.0), (80, 3, 0.0), (60, 3, 30.0), (150, 120, 6.0)],
    ids=["two classes", "seven", "no skill", "no errors", "classes without images"],
)
def test_the_report_of_any_predictions(count: int, num_classes: int, skill: float) -> None:
    """With few and many classes, no skill and no errors, the report says what is in the table."""
    predictions = random_predictions(count, num_classes, skill=skill)
    report = _evaluate(predictions, calibration=TemperatureFit(temperature=1.7, state="fitted"))
    _check(report, predictions)
    absent = [figures.name for figures in report.by_class if figures.images == 0]
    missing = set(range(num_classes)) - set(predictions.labels_N.tolist())
    assert absent == [f"class {k}" for k in sorted(missing)]


def test_a_report_says_what_a_bias_costs_and_which_class_is_off() -> None:
    """The recall of equal weights stands beside that of labels; a class that is off is no claim."""
    generator = np.random.default_rng(0)
    labels = generator.choice(3, 2000, p=(0.8, 0.14, 0.06))
    scores = generator.normal(size=(2000, 3))
    scores[np.arange(2000), labels] += 1.5
    balanced = classification.softmax(1.5 * scores)
    bias = tuple(np.log((0.8, 0.14, 0.06)).tolist())
    fit = TemperatureFit(temperature=1.0, state="fitted", bias=bias)
    right_NK = classification.softmax(fit.logits(1.5 * scores))
    report = _evaluate(made_of(right_NK, labels.tolist()), calibration=fit)
    assert report.calibration.is_calibrated
    right = balanced.argmax(axis=1) == labels
    expected = [float(right[labels == k].mean()) for k in range(3)]
    assert [row.balanced_recall for row in report.by_class] == pytest.approx(expected)
    assert f"{np.mean(expected):.1%} and {expected[2]:.1%}" in report.note_on_balance
    assert report.by_class[2].recall.value < expected[2]
    claimed = _evaluate(
        made_of(balanced, labels.tolist()),
        calibration=TemperatureFit(temperature=1.0, state="fitted"),
    )
    assert not claimed.calibration.is_calibrated
    assert "'class 2' has a mean probability of" in claimed.calibration.sentence()
    assert claimed.note_on_balance == ""


@pytest.mark.parametrize("right", [True, False])
def test_one_image_is_enough_for_a_report(right: bool) -> None:
    """A single image gives figures with wide intervals, right or wrong."""
    report = _evaluate(made_of(np.array([[0.8, 0.1, 0.1]]), [0 if right else 2]))
    assert report.accuracy.value == float(right)
    assert report.accuracy.high - report.accuracy.low > 0.9
    assert report.errors == (not right)
    assert report.warning


def test_no_image_at_all_is_an_error() -> None:
    """A split without images has no report."""
    nothing = random_predictions(10, 3).of_split("train")
    with pytest.raises(DataError, match="no train image"):
        _evaluate(nothing, split="train")


def test_the_gallery_has_the_size_that_was_asked_for() -> None:
    """Of many images, `gallery_size` are kept, and all errors and doubts are counted."""
    predictions = random_predictions(300, 5, skill=0.5)
    report = _evaluate(predictions, config=EvaluationConfig(gallery_size=7))
    for name in GALLERIES:
        assert len(getattr(report, name)) == 7
    assert report.errors > 7
    assert report.suspected_labels > 7
    none = _evaluate(predictions, config=EvaluationConfig(gallery_size=0))
    assert none.most_confident_errors == ()


def test_the_split_stands_in_front_of_the_figures() -> None:
    """The figures of another split have its own name."""
    report = _evaluate(random_predictions(50, 3), split="validation")
    assert {key.partition("/")[0] for key in report.metrics} == {"validation"}
    assert report.accuracy == report.metrics["validation/accuracy"]


def test_images_of_one_group_are_counted_as_such() -> None:
    """Only where two images share a group: then the intervals are by groups, and that is said."""
    alone = random_predictions(6, 3, group=["anna", "ben", "", "", "", ""])
    assert (_evaluate(alone).groups, _evaluate(alone).groups_note) == (None, "")
    report = _evaluate(random_predictions(6, 3, group=["anna", "ben", "ben", "", "", ""]))
    assert report.groups == 5
    assert report.groups_note.startswith("these 6 images form 5 groups: the intervals take groups")


def test_copies_of_images_make_nothing_more_certain() -> None:
    """Ten frames of each patient give the intervals of one, but for few degrees of freedom."""
    once = random_predictions(60, 3)
    ten = pd.concat([once.table.assign(group=once.table["path"])] * 10, ignore_index=True)
    ten["path"] = [f"{path} {number}" for number, path in enumerate(ten["path"])]
    grouped, alone = (_evaluate(Predictions.of(each)) for each in (ten, ten.assign(group="")))
    expected = _evaluate(once)
    assert (grouped.groups, grouped.images) == (60, 600)

    def width(estimate: MetricEstimate | None) -> float:
        assert estimate is not None
        return estimate.high - estimate.low

    for key, one in expected.metrics.items():
        assert grouped.metrics[key].value == pytest.approx(one.value), key
        assert width(grouped.metrics[key]) == pytest.approx(width(one), rel=0.2), key
        assert width(alone.metrics[key]) < 0.6 * width(grouped.metrics[key]), key
    for row, one_row in zip(grouped.by_class, expected.by_class, strict=True):
        for key in ("precision", "recall", "f1", "roc_auc", "pr_auc"):
            expected_width = width(getattr(one_row, key))
            assert width(getattr(row, key)) == pytest.approx(expected_width, rel=0.25), key
    for found, one_bin in zip(grouped.reliability, expected.reliability, strict=True):
        assert width(found.accuracy) >= 0.99 * width(one_bin.accuracy)


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    """Written as JSON and read again, a report is the same to the last digit."""
    report = report_of(tmp_path, ("<b>", "ä/ö", "🌷 tulip"))
    text = report.model_dump_json()
    assert EvaluationReport.model_validate_json(text) == report
    assert json.loads(text)["classes"] == ["<b>", "ä/ö", "🌷 tulip"]
    assert report.slices != ()


def test_the_same_predictions_give_the_same_report(tmp_path: Path) -> None:
    """Nothing in a report is left to chance."""
    assert report_of(tmp_path, CLASSES) == report_of(tmp_path, CLASSES)


def test_a_model_that_is_no_better_than_one_answer_is_said() -> None:
    """A report warns when naming the commonest class for every image would do as well."""
    labels = [0] * 60 + [1] * 40
    lazy = _evaluate(made_of(np.tile([0.6, 0.4], (100, 1)), labels))
    assert "not clearly better than always predicting 'class 0'" in lazy.warning
    assert lazy.commonest[0] == "class 0"
    assert lazy.commonest[1] == pytest.approx(0.6)
    knowing = np.array([[0.9, 0.1]] * 60 + [[0.1, 0.9]] * 40)
    assert _evaluate(made_of(knowing, labels)).warning == ""
