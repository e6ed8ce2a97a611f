"""What differs between the tasks is a value, so that a further task is one more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.html_report import (
    ReportContents,
    ReportPage,
    ReportParts,
    WhereItLooked,
    write_report,
)
from patchline.pipeline.evaluation.report import EvaluationReport, ReportSubject
from patchline.pipeline.evaluation.tasks import SEVERAL, SINGLE, TASKS, Task
from tests.pipeline.evaluation.conftest import predicted_rows
from tests.pipeline.evaluation.label_set_data import LABELS, logits_table

Array = np.ndarray[Any, Any]
CLASSES = ("bad", "fair", "good")


@pytest.mark.parametrize(
    ("task", "logits", "classes", "strange"),
    [
        (SINGLE, predicted_rows(CLASSES), CLASSES, "zebra"),
        (SEVERAL, logits_table(), LABELS, '["circle", "zebra"]'),
    ],
)
def test_labels_and_predictions_have_one_form(
    task: Task[Any], logits: pd.DataFrame, classes: tuple[str, ...], strange: str
) -> None:
    """The fit is that of all images but the test split; an unknown label is named."""
    table, fit = task.calibrated(logits, classes)
    found = task.predictions(table, classes)
    assert np.array_equal(found.labels, task.labels(list(table["label"]), classes))
    assert np.array_equal(found.predicted, task.labels(list(table["predicted"]), classes))
    assert fit == task.fitted(logits[logits["split"] == "validation"], classes, ())
    assert TASKS[task.name] is task
    with pytest.raises(DataError, match="zebra"):
        task.labels([strange], classes)


def _grades(report: EvaluationReport, page: ReportPage, looked: WhereItLooked) -> ReportParts:
    return SINGLE.parts(report, page, looked)._replace(notes=["grades have an order"])


def test_a_third_task_is_one_more_value(tmp_path: Path) -> None:
    """Grades are classes with an order, which their report says."""
    ordinal = replace(SINGLE, gives="a grade", parts=_grades)
    table, fit = ordinal.calibrated(predicted_rows(CLASSES), CLASSES)
    tested = ordinal.predictions(table[table["split"] == "test"], CLASSES)
    subject = ReportSubject("cups", CLASSES, "test", "0" * 64)
    report = ordinal.report(tested, subject, fit, EvaluationConfig())
    page = ReportPage(title="cups", facts={}, notes=(), settings={})
    pixels = np.zeros((len(table), 8, 8, 3), np.uint8)
    contents = ReportContents(page, table, pixels.__getitem__)
    assert (
        "grades have an order"
        in write_report(ordinal.parts, report, contents, tmp_path).read_text()
    )
