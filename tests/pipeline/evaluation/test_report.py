"""The figures of a report, computed again by hand with scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn import metrics as reference

from pipeline.evaluation.report import EvaluationReport, evaluate, save
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import report_of, save_predictions

Array = np.ndarray[Any, Any]
CLASSES = ("across", "down", "rising", "falling")


class _Predicted(NamedTuple):
    """The test predictions of a file, as scikit-learn takes them."""

    paths: list[str]
    labels_N: Array
    logits_NK: Array


def _predicted(file: Path, split: str) -> _Predicted:
    table = pd.read_parquet(file)
    chosen = table[table["split"] == split]
    logits_NK = np.array(chosen["logits"].tolist(), dtype=np.float64)
    return _Predicted(list(chosen["path"]), chosen["label_index"].to_numpy(), logits_NK)


def _best_log_loss(predicted: _Predicted) -> float:
    """Return the smallest log loss that any temperature gives."""
    classes = range(predicted.logits_NK.shape[1])

    def loss(log_temperature: float) -> float:
        probabilities = softmax(predicted.logits_NK / np.exp(log_temperature), axis=1)
        return float(reference.log_loss(predicted.labels_N, probabilities, labels=list(classes)))

    return float(minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded").fun)


def _check_against_scikit_learn(report: EvaluationReport, file: Path) -> None:
    labels, logits = _predicted(file, "test")[1:]
    classes, said = list(range(len(report.classes))), logits.argmax(axis=1)
    probabilities = softmax(logits / report.temperature, axis=1)
    precision, recall, f1, images = reference.precision_recall_fscore_support(
        labels, said, labels=classes, zero_division=0
    )
    expected = {
        "test/accuracy": reference.accuracy_score(labels, said),
        "test/macro_precision": precision.mean(),
        "test/macro_recall": recall.mean(),
        "test/macro_f1": f1.mean(),
        "test/log_loss": reference.log_loss(labels, probabilities, labels=classes),
    }
    if len(classes) > 5:
        expected["test/top5_accuracy"] = reference.top_k_accuracy_score(labels, logits, k=5)
    assert {key: estimate.value for key, estimate in report.metrics.items()} == pytest.approx(
        expected, abs=1e-9
    )
    for estimate in report.metrics.values():
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.n == len(labels)
    confusion = reference.confusion_matrix(labels, said, labels=classes)
    assert np.array_equal(np.array(report.confusion), confusion)
    assert report.errors == int((said != labels).sum())
    for k, figures in enumerate(report.by_class):
        assert (figures.name, figures.images) == (report.classes[k], images[k])
        assert figures.precision.value == pytest.approx(precision[k])
        assert figures.recall.value == pytest.approx(recall[k])
        assert figures.f1 == pytest.approx(f1[k])


def _check_errors(report: EvaluationReport, file: Path) -> None:
    paths, labels, logits = _predicted(file, "test")
    probabilities = softmax(logits / report.temperature, axis=1)
    shown = report.most_confident_errors
    assert len(shown) == min(report.errors, 24)
    surest = [error.probability for error in shown]
    assert surest == sorted(surest, reverse=True)
    wrong = probabilities.argmax(axis=1) != labels
    every_error = np.sort(probabilities.max(axis=1)[wrong])[::-1]
    assert surest == pytest.approx(every_error[: len(shown)].tolist())
    assert len({error.path for error in shown}) == len(shown)
    for error in shown:
        at = paths.index(error.path)
        assert error.label == report.classes[labels[at]] != error.predicted
        assert error.predicted == report.classes[int(probabilities[at].argmax())]
        assert error.probability == pytest.approx(probabilities[at].max())
        assert error.label_probability == pytest.approx(probabilities[at, labels[at]])


@pytest.fixture
def real(finished_run: Run) -> tuple[EvaluationReport, Path]:
    """Return the report of the real run, read from its file, and its predictions."""
    folder = Path(str(finished_run.summary["report"])).parent
    report = EvaluationReport.model_validate_json((folder / "report.json").read_text())
    return report, folder / "predictions.parquet"


def test_the_figures_of_a_real_run_are_those_of_scikit_learn(
    real: tuple[EvaluationReport, Path], finished_run: Run
) -> None:
    """Every figure of the run's report, and of its summary, comes out again by hand."""
    _check_against_scikit_learn(*real)
    _check_errors(*real)
    said = {key: estimate["value"] for key, estimate in finished_run.summary["metrics"].items()}
    assert said == {key: estimate.value for key, estimate in real[0].metrics.items()}


def test_the_rows_of_a_real_run_are_its_test_images(
    real: tuple[EvaluationReport, Path], finished_run: Run
) -> None:
    """The predictions cover validation and test once, never a training image."""
    report, file = real
    table = pd.read_parquet(file)
    assert set(table["split"]) == {"validation", "test"}
    assert table["path"].is_unique
    assert [report.classes[index] for index in table["label_index"]] == list(table["label"])
    for path, label in zip(table["path"], table["label"], strict=True):
        assert (finished_run.folder / "photos" / path).is_file()
        assert path.split("/")[0] == label


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("count", [2, 4, 7])
def test_the_figures_of_any_predictions_are_those_of_scikit_learn(
    tmp_path: Path, count: int, accuracy: float
) -> None:
    """With few and many classes, all right, all wrong and between, the figures agree."""
    classes = tuple(f"class {k}" for k in range(count))
    report = report_of(tmp_path, classes, accuracy=accuracy)
    _check_against_scikit_learn(report, tmp_path / "predictions.parquet")
    _check_errors(report, tmp_path / "predictions.parquet")


def test_the_gallery_is_limited(tmp_path: Path) -> None:
    """Of many errors, the 24 surest are kept, and all are counted."""
    report = report_of(tmp_path, CLASSES, accuracy=0.0, per_class=20)
    assert report.errors == 80
    assert len(report.most_confident_errors) == 24


def test_the_temperature_comes_from_the_validation_split(tmp_path: Path) -> None:
    """It gives the validation split its smallest log loss, and leaves the test split out of it."""
    file = save_predictions(tmp_path / "predictions.parquet", CLASSES)
    table = pd.read_parquet(file)
    table.loc[table["split"] == "validation", "logits"] *= 8
    table.to_parquet(file)
    report = evaluate(file, name="photos", classes=CLASSES, data_fingerprint="")
    validation = _predicted(file, "validation")
    probabilities = softmax(validation.logits_NK / report.temperature, axis=1)
    ours = reference.log_loss(validation.labels_N, probabilities, labels=list(range(4)))
    assert ours == pytest.approx(_best_log_loss(validation), abs=1e-4)
    test = _predicted(file, "test")
    assert report.metrics["test/log_loss"].value > _best_log_loss(test) + 0.05


def test_another_split_can_be_reported(tmp_path: Path) -> None:
    """The figures of another split stand under its own name."""
    file = save_predictions(tmp_path / "predictions.parquet", CLASSES)
    report = evaluate(file, name="photos", classes=CLASSES, data_fingerprint="", split="validation")
    assert report.split == "validation"
    assert {key.partition("/")[0] for key in report.metrics} == {"validation"}
    labels, logits = _predicted(file, "validation")[1:]
    accuracy = float((logits.argmax(axis=1) == labels).mean())
    assert report.metrics["validation/accuracy"].value == pytest.approx(accuracy)


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    """Written as JSON and read again, a report is the same to the last digit."""
    report = report_of(tmp_path, ("<b>", "ä/ö", "🌷 tulip"))
    save(report, tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text()
    assert EvaluationReport.model_validate_json(text) == report
    assert json.loads(text)["classes"] == ["<b>", "ä/ö", "🌷 tulip"]


def test_the_same_predictions_give_the_same_report(tmp_path: Path) -> None:
    """Intervals come from a seeded bootstrap, so a report can be computed again."""
    assert report_of(tmp_path, CLASSES) == report_of(tmp_path, CLASSES)


def test_a_model_that_is_no_better_than_one_answer_is_said(finished_run: Run) -> None:
    """A report warns when naming the commonest class for every image would do as well."""
    file = Path(finished_run.summary["report"]).with_name("report.json")
    report = EvaluationReport.model_validate_json(file.read_text(encoding="utf-8"))
    low = report.metrics["test/accuracy"].model_copy(update={"value": 0.3, "low": 0.1})
    poor = report.model_copy(update={"metrics": {**report.metrics, "test/accuracy": low}})
    assert "not clearly better than always answering" in poor.warning
    high = low.model_copy(update={"value": 0.99, "low": 0.98})
    good = report.model_copy(update={"metrics": {**report.metrics, "test/accuracy": high}})
    assert good.warning == ""
