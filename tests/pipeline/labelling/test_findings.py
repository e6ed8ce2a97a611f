"""Findings of an inspection are corrected on the page, and the corrections go to the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.labelling.findings import label_findings
from patchline.pipeline.labelling.image_order import ImageOrder

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
