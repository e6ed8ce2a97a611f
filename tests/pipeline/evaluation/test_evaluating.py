"""The evaluation stage: temperature, files of a report, and its pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.evaluation.__main__ import explain_predictions, predict
from patchline.pipeline.evaluation.config import GALLERY_SIZE, EvaluationConfig
from patchline.pipeline.evaluation.galleries import choose_images, confident_errors
from patchline.pipeline.evaluation.metrics.temperature import by_member, fit_temperature
from patchline.pipeline.evaluation.prediction_job import EvaluationJob, ExplanationJob
from patchline.pipeline.evaluation.predictions import Predictions, image_groups
from patchline.pipeline.evaluation.report import slices
from patchline.pipeline.evaluation.tasks import SINGLE
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import load_description
from patchline.pipeline.models.model_files import load_model, save_model
from patchline.pipeline.packaging.__main__ import package
from patchline.pipeline.packaging.job import PackagingJob
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.training.train_result import EnsembleResult
from patchline.pipeline.workers.event_log import EventWriter
from tests.conftest import Run
from tests.pipeline.conftest import vit_choice
from tests.pipeline.evaluation.conftest import places, predicted_rows
from tests.pipeline.evaluation.visual_guide.made_guides import CLASSES as FLOWERS
from tests.pipeline.evaluation.visual_guide.made_guides import SIDE, make_model

CLASSES = ("across", "down", "rising", "falling")


def test_the_temperature_comes_from_the_validation_split() -> None:
    """It is fitted on the validation split alone; an ensemble's members have their own."""
    rows = predicted_rows(CLASSES, per_class=40)
    validation = (rows["split"] == "validation").to_numpy()
    table, fit = SINGLE.calibrated(rows, CLASSES)
    logits = np.stack(list(rows["logits"]))[validation]
    labels = table["label_index"].to_numpy()[validation]
    assert fit == fit_temperature(logits, labels, groups=image_groups(rows[validation]))
    assert fit.images == 160
    _, unknown = SINGLE.calibrated(rows[~validation], CLASSES)
    assert (unknown.state, unknown.temperature) == ("not fitted", 1)
    ensemble = EnsembleResult(weights=Path(), calibrations=(fit, fit), seconds=1)
    assert SINGLE.calibrated(rows, CLASSES, ensemble)[1] == by_member((fit, fit))


@pytest.mark.parametrize("class_images", [(), (900, 60, 30, 10)])
def test_probabilities_are_the_logits_over_the_temperature(
    class_images: tuple[int, ...],
) -> None:
    """The table's probabilities of both splits come from its logits; a bias is added."""
    table, fit = SINGLE.calibrated(
        predicted_rows(CLASSES, per_class=40), CLASSES, None, class_images
    )
    assert fit.temperature != 1
    assert len(fit.bias) == (4 if class_images else 0)
    logits = np.stack(list(table["logits"])).astype(np.float64)
    expected = softmax(logits / fit.temperature + (fit.bias or 0), axis=1)
    assert Predictions.of(table).probabilities_NK == pytest.approx(expected, abs=1e-6)


def test_a_real_run_has_its_files(finished_run: Run) -> None:
    """The run's report folder holds every file, and nothing half-made."""
    folder = Path(str(finished_run.summary["report"])).parent
    assert {file.name for file in folder.iterdir()} == {
        "report.html", "report.json", "predictions.parquet", "explanations", "reference_images.npz",
        "confusion_matrix.png", "confusion_matrix_normalised.png", "reliability.png",
        "training_curves.png", "confident_errors.png", "least_certain.png",
        "likely_label_errors.png",
    }  # fmt: skip
    assert not (folder.parent / "prediction/logits.parquet").exists()


def test_the_worker_predicts_all_that_a_report_needs(finished_run: Run) -> None:
    """Corrupted images, columns to slice by, and the same logits as those of the run."""
    best, file, store = places(finished_run)
    manifest = manifests.load(file)
    sites = [f"site {number % 3}" for number in range(len(manifest))]
    manifests.save(manifest.assign(**{"column:site": sites, "column:age": "1"}), Path("m"))
    classes = ("across", "down", "rising")
    job = EvaluationJob(
        model_folder=best,
        manifest_file=Path("m"),
        store=store,
        splits=("validation", "test"),
        device="cpu",
        file=Path("logits.parquet"),
        columns=("column:site",),
        corrupted=3,
    )
    predicted = predict(job, EventWriter(Path("events.jsonl")))
    assert predicted.robustness is not None
    assert predicted.robustness.images == 3  # of the test split
    table, _ = SINGLE.calibrated(pd.read_parquet(job.file), classes)
    assert "column:age" not in table
    found = slices(Predictions.of(table), EvaluationConfig(slices=("column:site",)))
    assert {part.value for part in found} == {"site 0", "site 1", "site 2"}
    assert sum(part.images for part in found) == len(table)
    report = Path(str(finished_run.summary["report"]))
    alone = pd.read_parquet(report.with_name("predictions.parquet")).set_index("path")
    alone = alone.loc[table["path"]]
    logits, expected = (np.stack(list(each["logits"])) for each in (table, alone))
    assert np.allclose(logits, expected, atol=1e-5)


def test_the_package_of_a_model_that_averages_views_does_so_too(finished_run: Run) -> None:
    """Its graph averages, its description says so, and a model loaded from it averages, too."""
    best, manifest, store = places(finished_run)
    flips = {**vit_choice().model_dump(), "test_time_flip": True}
    small, described = ModelChoice.model_validate(flips), load_description(best)
    described = described.model_copy(update={"model": small})
    save_model(Path("small"), build_model(small, described.image, 3), described)
    places_of = {"model_folder": Path("small"), "manifest_file": manifest, "store": store}
    job = PackagingJob(**places_of, reported=None, folder=Path("made"))
    package(job, EventWriter(Path("events.jsonl")))
    made = PackagedModel(job.folder / "model.onnx", job.folder / "model.json", 1)
    shape = (3, *(made.image[key] for key in ("height", "width", "channels")))
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    mirrored = np.ascontiguousarray(images[:, :, ::-1])
    assert np.allclose(made.probabilities(images), made.probabilities(mirrored), atol=1e-5)
    model, description = load_model(job.folder)
    assert description.model.settings["test_time_flip"] is True
    assert getattr(model, "test_time_flip") is True  # noqa: B009 - a plugin's own attribute
    assert "test-time flip" in (job.folder / "model_card.md").read_text("utf-8")


def test_the_surest_right_and_the_worst_wrong_test_image_are_chosen() -> None:
    """Images of other splits do not count; without an error there is one page."""
    rows = {
        "split": ["validation", *["test"] * 4],
        "path": [f"{n}.png" for n in range(5)],
        "label": "rose",
        "predicted": ["rose", "rose", "tulip", "rose", "tulip"],
        "probability": [0.99, 0.6, 0.9, 0.7, 0.8],
        "row": range(10, 15),
    }
    mixed = choose_images(pd.DataFrame(rows), ())
    assert [(each.page, each.row) for each in mixed] == [("surest_right", 13), ("worst_wrong", 12)]
    right = choose_images(pd.DataFrame({**rows, "predicted": "rose"}), ())
    assert [(each.page, each.row) for each in right] == [("surest_right", 12)]


def test_the_average_of_calibrated_models_gets_no_other_temperature() -> None:
    """Only the members of an ensemble have temperatures; a model has its own."""
    rows = predicted_rows(FLOWERS, per_class=40)
    fit = SINGLE.calibrated(rows, FLOWERS)[1]
    assert fit.temperature != 1
    ensemble = EnsembleResult(weights=Path("none"), calibrations=(fit, fit), seconds=1)
    table, of_both = SINGLE.calibrated(rows, FLOWERS, ensemble)
    assert SINGLE.described(of_both)["temperature"] == 1
    expected = softmax(np.stack(list(rows["logits"])), axis=1)
    assert np.stack(list(table["probabilities"])) == pytest.approx(expected, abs=1e-6)


def test_a_model_that_cannot_be_explained_costs_only_the_explanations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says why. A model that can be gets two pages, a test, and a map of each error."""
    table, _ = SINGLE.calibrated(predicted_rows(FLOWERS), FLOWERS)
    model, description = make_model({"name": "vit", "depth": 1})
    images = np.zeros((len(table), SIDE, SIDE, 3), np.uint8)
    job = ExplanationJob(name="flowers", seed=0, folder=Path("no"))
    nothing = explain_predictions(job, nn.Linear(1, 1), description, images, table)
    assert (nothing.maps(), nothing.test) == ({}, None)
    assert "The maps of where the model looked could not be computed" in caplog.text
    assert not Path("no").exists()

    job = job.model_copy(update={"folder": Path("yes")})
    found = explain_predictions(job, model, description, images, table)
    pages = {file.name for file in job.folder.glob("*.html")}
    assert pages == {"surest_right.html", "worst_wrong.html"}
    test = Predictions.of(table[table["split"] == "test"])
    assert list(found.maps()) == test.positions[confident_errors(test)[:GALLERY_SIZE]].tolist()
    assert found.test is not None
    assert found.test.images == len(test.labels)
