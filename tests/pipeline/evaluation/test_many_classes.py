"""A report on thousands of classes: bounded memory, small files, nothing lost."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats  # noqa: F401 - their import is not what is measured

from benchmarks.evaluation import build_report, class_names, make_table, save_report
from patchline.pipeline.evaluation.comparison import ComparisonSubject, compare
from patchline.pipeline.evaluation.metrics.confusion_matrix import find_confused_pairs
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import EvaluationReport

CLASSES, IMAGES = 2000, 300
MATRIX_BYTES = 4 * CLASSES**2
"""Of a matrix of all classes and all classes, in the smallest type that is used for one."""


@pytest.mark.slow
def test_a_report_on_thousands_of_classes(tmp_path: Path) -> None:
    """No part needs a matrix of all classes; page and JSON stay small, and hold every confusion."""
    table, _ = make_table(CLASSES, IMAGES)
    predictions = Predictions.of(table)
    probabilities, labels = predictions.probabilities_NK, predictions.labels
    tracemalloc.start()
    try:
        report = build_report(predictions, CLASSES)
        compared = compare(
            ComparisonSubject(
                champion="a/1", challenger="a/2", classes=class_names(CLASSES), left_out={}
            ),
            paths=list(table["path"]),
            labels_N=labels,
            champion_NK=np.roll(probabilities, 1, axis=0),
            challenger_NK=probabilities,
        )
        beyond = tracemalloc.get_traced_memory()[1] - probabilities.nbytes  # of the rolled copy
    finally:
        tracemalloc.stop()
    assert beyond < 2 * MATRIX_BYTES
    assert len(report.by_class) == len(compared.by_class) == CLASSES
    assert report.confusion == ()
    assert sum(images for *_, images in report.confusion_cells) == IMAGES
    most = find_confused_pairs(report.cells, report.classes, limit=IMAGES)
    errors = int((probabilities.argmax(axis=1) != labels).sum())
    assert sum(pair.images for pair in most) == report.errors == errors

    html = save_report(report, table, tmp_path)
    assert html.stat().st_size < 3 * 2**20
    assert f"{CLASSES - 500:,}" in html.read_text("utf-8")
    text = (tmp_path / "report.json").read_text("utf-8")
    assert EvaluationReport.model_validate_json(text) == report
    again = pd.read_parquet(tmp_path / "predictions.parquet")
    assert again.drop(columns="probabilities").equals(table.drop(columns="probabilities"))
    read, kept = (np.stack(list(each["probabilities"])) for each in (again, table))
    assert np.array_equal(read, kept)
