"""Findings of an inspection are corrected on the page, and the corrections go to the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.labelling.answer import Answer, now
from patchline.pipeline.labelling.answers_table import AnswersTable
from patchline.pipeline.labelling.findings import data_labels, label_findings
from patchline.pipeline.labelling.image_order import ImageOrder
from patchline.pipeline.labelling.pool import Pool
from patchline.plugin_api import ImageListing, ListedImage
from tests.pipeline.labelling.labelled import rows_of, write_images

_HEADER = "path,split,label,kind,severity,exclude,detail\n"


def test_only_findings_on_labels_are_asked_about(tmp_path: Path) -> None:
    """With the label that the data has, and in the order of the table."""
    rows = ["b.png,train,cat,label_error,warning,,x", "a.png,test,dog,blurred,note,,x"]
    (tmp_path / "findings.csv").write_text(_HEADER + "\n".join(rows) + "\n")
    assert label_findings(tmp_path) == {"b.png": ("cat",)}
    order = ImageOrder(["a", "b"], seed=0, listed=["b"])
    chosen = order.next(lambda _: True)
    assert chosen is not None
    assert chosen == ("b", "finding")


def test_a_table_without_such_findings_is_refused(tmp_path: Path) -> None:
    """With the command that finds them."""
    (tmp_path / "findings.csv").write_text(_HEADER)
    with pytest.raises(DataError, match="--check-labels MODEL"):
        label_findings(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        label_findings(tmp_path / "absent.csv")


def test_the_table_of_corrections_holds_every_label_and_split(tmp_path: Path) -> None:
    """A run trains on all images, with the corrected labels; a correction can be taken back."""
    write_images(tmp_path, 3)
    images = [
        ListedImage("000.png", "rose", "test"),
        ListedImage("001.png", "rose", "train"),
        ListedImage("gone.png", "rose", "train"),
    ]
    listed = data_labels(
        ImageListing(name="flowers", root=tmp_path, images=images), Pool(tmp_path, tmp_path)
    )
    table = AnswersTable(tmp_path / "labels.csv")
    table.begin(listed.answers, listed.columns)
    correction = Answer("001.png", "label", ("tulip",), "ada", now(), "finding", batch="b")
    table.append([correction])
    rows = {row["path"]: (row["label"], row["split"]) for row in rows_of(table.file)}
    assert rows == {"000.png": ("rose", "test"), "001.png": ("tulip", "train")}
    again = AnswersTable(tmp_path / "labels.csv")
    again.undo(again.last_batch("ada"))
    rows = {row["path"]: (row["label"], row["split"]) for row in rows_of(table.file)}
    assert rows["001.png"] == ("rose", "train")
