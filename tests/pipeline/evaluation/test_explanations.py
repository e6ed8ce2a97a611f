"""What a run shows about why: which predictions, whose maps, and that it can fail alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from torch import nn

from patchline.pipeline.evaluation.__main__ import explain_predictions
from patchline.pipeline.evaluation.galleries import chosen_images, confident_errors
from patchline.pipeline.evaluation.prediction_job import ExplanationJob
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.tasks import SINGLE
from patchline.pipeline.training.train_result import EnsembleResult
from tests.pipeline.evaluation.conftest import predicted_rows
from tests.pipeline.evaluation.visual_guide.made_guides import CLASSES, SIDE, make_model


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
    mixed = chosen_images(pd.DataFrame(rows), ())
    assert [(each.page, each.row) for each in mixed] == [("surest_right", 13), ("worst_wrong", 12)]
    right = chosen_images(pd.DataFrame({**rows, "predicted": "rose"}), ())
    assert [(each.page, each.row) for each in right] == [("surest_right", 12)]


def test_the_average_of_calibrated_models_gets_no_other_temperature() -> None:
    """Only the members of an ensemble have temperatures; a model has its own."""
    rows = predicted_rows(CLASSES, per_class=40)
    fit = SINGLE.calibrated(rows, CLASSES)[1]
    assert fit.temperature != 1
    ensemble = EnsembleResult(weights=Path("none"), calibrations=(fit, fit), seconds=1)
    table, of_both = SINGLE.calibrated(rows, CLASSES, ensemble)
    assert SINGLE.described(of_both)["temperature"] == 1
    expected = softmax(np.stack(list(rows["logits"])), axis=1)
    assert np.stack(list(table["probabilities"])) == pytest.approx(expected, abs=1e-6)


def test_a_model_that_cannot_be_explained_costs_only_the_explanations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says why. A model that can be gets two pages, a test, and a map of each error."""
    table, _ = SINGLE.calibrated(predicted_rows(CLASSES), CLASSES)
    model, description = make_model({"name": "vit", "depth": 1})
    images = np.zeros((len(table), SIDE, SIDE, 3), np.uint8)
    job = ExplanationJob(name="flowers", errors=5, seed=0, folder=Path("no"))
    nothing = explain_predictions(job, nn.Linear(1, 1), description, images, table)
    assert (nothing.maps(), nothing.test) == ({}, None)
    assert "The maps of where the model looked could not be computed" in caplog.text
    assert not Path("no").exists()

    job = job.model_copy(update={"folder": Path("yes")})
    found = explain_predictions(job, model, description, images, table)
    pages = {file.name for file in job.folder.glob("*.html")}
    assert pages == {"surest_right.html", "worst_wrong.html"}
    test = Predictions.of(table[table["split"] == "test"])
    assert list(found.maps()) == test.positions[confident_errors(test)[:5]].tolist()
    assert found.test is not None
    assert found.test.images == len(test.labels)
