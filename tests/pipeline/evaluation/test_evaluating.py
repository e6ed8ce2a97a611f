"""The evaluation stage: the temperature, and the files of a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.evaluation import plots
from patchline.pipeline.evaluation.__main__ import predict
from patchline.pipeline.evaluation.calibrated_predictions import calibrated
from patchline.pipeline.evaluation.chosen_images import EXPLANATIONS
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.grouped_images import image_groups
from patchline.pipeline.evaluation.html_report import ReportPage
from patchline.pipeline.evaluation.prediction_job import CorruptionJob, PredictionJob
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.evaluation.slices import slices
from patchline.pipeline.evaluation.written_report import ReportContents, write_report
from patchline.pipeline.metrics.temperature import by_member, fit_temperature
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE
from patchline.pipeline.workers.event_log import EventWriter
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import predicted_rows, random_images, report_of

CLASSES = ("across", "down", "rising", "falling")
PICTURES = {
    plots.CONFUSION,
    plots.CONFUSION_SHARES,
    plots.RELIABILITY,
    plots.ERRORS,
    plots.UNCERTAIN,
    plots.LABEL_ERRORS,
}
FILES = {"report.html", "report.json", "predictions.parquet"}


def test_the_temperature_comes_from_the_validation_split() -> None:
    """It is fitted on the validation split alone; an ensemble's members have their own."""
    rows = predicted_rows(CLASSES, per_class=40)
    validation = (rows["split"] == "validation").to_numpy()
    rows.loc[validation, "logits"] *= 8
    table, fit = calibrated(rows, CLASSES)
    logits = np.stack(list(rows["logits"]))[validation]
    labels = table["label_index"].to_numpy()[validation]
    assert fit == fit_temperature(logits, labels, groups=image_groups(rows[validation]))
    assert fit.images == 160
    _, other = calibrated(predicted_rows(CLASSES, per_class=40), CLASSES)
    assert fit.temperature > 2 * other.temperature
    _, unknown = calibrated(rows[~validation], CLASSES)
    assert (unknown.state, unknown.temperature) == ("not fitted", 1)
    members = by_member((fit, other))
    assert calibrated(rows[~validation], CLASSES, members)[1] == members


def test_probabilities_are_the_logits_over_the_temperature() -> None:
    """The table's probabilities of both splits come from its logits with that temperature."""
    table, fit = calibrated(predicted_rows(CLASSES, per_class=40), CLASSES)
    assert fit.temperature != 1
    logits = np.stack(list(table["logits"])).astype(np.float64)
    expected = softmax(logits / fit.temperature, axis=1)
    assert Predictions.of(table).probabilities_NK == pytest.approx(expected, abs=1e-6)
    rows, images = predicted_rows(CLASSES, per_class=40), (900, 60, 30, 10)
    table, fit = calibrated(rows, CLASSES, None, images)
    assert len(fit.bias) == len(CLASSES)
    expected = softmax(logits / fit.temperature + fit.bias, axis=1)
    assert Predictions.of(table).probabilities_NK == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("epochs", [0, 3])
def test_a_report_has_its_files_under_fixed_names(tmp_path: Path, epochs: int) -> None:
    """Page, JSON, predictions and pictures are written, curves only with a history."""
    report = report_of(tmp_path, CLASSES)
    predictions = Predictions.load(tmp_path / "predictions.parquet")
    images = random_images(len(predictions.paths), 3)
    keys = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")
    history = [{"epoch": epoch, **dict.fromkeys(keys, 0.5)} for epoch in range(epochs)]
    page = ReportPage(title="photos", facts={}, notes=(), settings={})
    folder = tmp_path / "report"
    contents = ReportContents(page, predictions.table, images.__getitem__, history)
    html = write_report(report, contents, folder)
    assert html == folder / "report.html"
    expected = FILES | PICTURES | ({plots.CURVES} if epochs else set())
    assert {file.name for file in folder.iterdir()} == expected
    text = (folder / "report.json").read_text(encoding="utf-8")
    assert EvaluationReport.model_validate_json(text) == report
    assert pd.read_parquet(folder / "predictions.parquet").equals(predictions.table)


def test_a_real_run_has_its_files(finished_run: Run) -> None:
    """The run's report folder holds every file, and nothing half-made."""
    folder = Path(str(finished_run.summary["report"])).parent
    files = {file.name for file in folder.iterdir()}
    assert files == FILES | PICTURES | {plots.CURVES, EXPLANATIONS, REFERENCE_IMAGES_FILE}
    assert not (folder.parent / "prediction" / "logits.parquet").exists()


def test_predictions_keep_the_columns_to_slice_by(finished_run: Run, tmp_path: Path) -> None:
    """The worker takes them from the manifest, and they are still there with probabilities."""
    work = finished_run.folder / ".patchline"
    [best], [file] = work.glob("runs/*/training/best"), work.glob("manifests/*.parquet")
    manifest = manifests.load(file)
    sites = [f"site {number % 3}" for number in range(len(manifest))]
    manifests.save(manifest.assign(**{"column:site": sites, "column:age": "1"}), tmp_path / "m")
    [store] = [each for each in work.glob("prepared/*") if not each.name.startswith(".")]
    job = PredictionJob(
        model_folder=best,
        manifest_file=tmp_path / "m",
        store=store,
        splits=("validation", "test"),
        device="cpu",
        file=tmp_path / "logits.parquet",
        columns=("column:site",),
        corrupted=CorruptionJob(images=3, seed=0, classes=("across", "down", "rising")),
    )
    predicted = predict(job, EventWriter(tmp_path / "events.jsonl"))
    assert predicted.robustness is not None
    assert predicted.robustness.images == 3  # of the test split
    assert predicted.robustness.mean.n == 3
    table, _ = calibrated(pd.read_parquet(job.file), ("across", "down", "rising"))
    assert "column:age" not in table
    found = slices(Predictions.of(table), EvaluationConfig(slices=("column:site",)))
    assert {part.value for part in found} == {"site 0", "site 1", "site 2"}
    assert sum(part.images for part in found) == len(table)
