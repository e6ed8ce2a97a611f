"""The table of predictions: its columns, its numbers, and what cannot be one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation import predictions
from patchline.pipeline.evaluation.predictions import COLUMNS, Predictions, with_probabilities
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import predicted_rows, save_predictions

CLASSES = ("across", "down", "rising")


def test_the_table_of_a_run_has_the_promised_columns(finished_run: Run) -> None:
    """Columns, classes and probabilities of a real run fit together."""
    file = Path(finished_run.summary["report"]).with_name("predictions.parquet")
    table = pd.read_parquet(file)
    assert list(table) == [*COLUMNS, "row", "logits"]
    found = Predictions.load(file)
    assert found.probabilities_NK.shape == (len(table), 3)
    assert found.probabilities_NK.sum(axis=1) == pytest.approx(1, abs=1e-5)
    answers = found.probabilities_NK.argmax(axis=1)
    assert [CLASSES[answer] for answer in answers] == list(table["predicted"])
    assert found.probabilities_NK.max(axis=1) == pytest.approx(table["probability"].to_numpy())
    assert [CLASSES[index] for index in found.labels_N] == list(table["label"])
    assert (table["width"] == 32).all()
    assert table["sha256"].str.len().eq(64).all()


def test_rows_keep_the_manifest_and_their_order() -> None:
    """Every column of the manifest is in the table as it was; an index is not."""
    rows = predicted_rows(CLASSES).sample(frac=1, random_state=0)
    probabilities = np.full((len(rows), 3), 1 / 3)
    table = with_probabilities(rows, CLASSES, probabilities)
    assert list(table.index) == list(range(len(rows)))
    for column in predictions.FROM_MANIFEST:
        assert list(table[column]) == list(rows[column])
    assert list(table["row"]) == list(rows["row"])
    plain = with_probabilities(rows.drop(columns=["row", "logits"]), CLASSES, probabilities)
    assert list(plain) == COLUMNS


def test_a_split_keeps_its_row_numbers(tmp_path: Path) -> None:
    """One split of a file is numbered as the file is, read alone or chosen later."""
    file = save_predictions(tmp_path / "predictions.parquet", CLASSES)
    whole = Predictions.load(file)
    for part in (Predictions.load(file, "test"), whole.of_split("test")):
        assert set(part.table["split"]) == {"test"}
        assert list(part.positions) == list(range(18, 36))
        assert [whole.paths[position] for position in part.positions] == part.paths
        assert np.array_equal(part.probabilities_NK, whole.probabilities_NK[18:])
        assert np.array_equal(part.labels_N, whole.labels_N[18:])


def test_a_split_without_images_is_empty(tmp_path: Path) -> None:
    """Choosing a split that does not exist gives no predictions."""
    file = save_predictions(tmp_path / "predictions.parquet", CLASSES)
    assert len(Predictions.load(file, "train").labels_N) == 0


def test_a_label_that_the_model_does_not_know_is_named() -> None:
    """Labels that are no class of the model are listed, with the classes that are."""
    rows = predicted_rows(("across", "tulip"))
    with pytest.raises(DataError, match="no class 'tulip'") as raised:
        with_probabilities(rows, CLASSES, np.full((len(rows), 3), 1 / 3))
    assert "'across', 'down', 'rising'" in str(raised.value)


def test_very_many_unknown_labels_are_cut_short() -> None:
    """Of many unknown labels, five are named and the others counted."""
    rows = predicted_rows(tuple(f"kind {k}" for k in range(9)))
    with pytest.raises(DataError, match="'kind 4' and 4 more"):
        with_probabilities(rows, CLASSES, np.full((len(rows), 3), 1 / 3))
