"""Patchline in real kernels, as Jupyter runs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.patience import patient
from tests.structure.pages import ROOT

_FEW_EPOCHS = 'training={"epochs": 5}'
_LESS = 'evaluation={"corruptions": 0, "explanations": False}'
_PROGRESS = """
from patchline.flows.progress.progress_display import display, show_progress
with show_progress():
    display().stage("Reading <b>flowers</b>")
    for done in range(1, 2001):
        display().advance("Training steps", done, 2000)
    display().note("only 17 test images")
"""
_MODELS = """
import flows, patchline
assert flows.ours
patchline.models()
"""


def _run(notebook: Any, folder: Path) -> Any:
    """Return a notebook with the outputs that a kernel has given its cells."""
    where = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=int(patient(600)), kernel_name="python3", resources=where
    )
    return client.execute()


def test_progress_and_tables_are_shown_in_a_notebook(tmp_path: Path) -> None:
    """The lines are one output, redrawn; nothing goes to standard error; a table is HTML.

    Beside the notebook is a package `flows` of somebody's own.
    """
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").write_text("ours = True\n", encoding="utf-8")
    cells = [nbformat.v4.new_code_cell(cell) for cell in (_PROGRESS, _MODELS)]
    notebook = _run(nbformat.v4.new_notebook(cells=cells), tmp_path)
    [lines] = notebook.cells[0].outputs
    assert lines.output_type == "display_data"
    assert "Reading &lt;b&gt;flowers&lt;/b&gt;" in lines.data["text/html"]
    assert "only 17 test images" in lines.data["text/plain"]
    assert "progress" not in lines.data["text/html"], "the bar stays behind"
    [table] = notebook.cells[1].outputs
    assert "aliases" in table.data["text/html"]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_prefect")
def test_the_example_notebook_works(tmp_path: Path) -> None:
    """Every cell of it; a run shows its progress, its result and its report.

    The run is evaluated with less than it would be.
    """
    file = ROOT / "examples" / "notebook.ipynb"
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "save it without outputs"
    for cell in notebook.cells:
        cell.source = cell.source.replace(_FEW_EPOCHS, f"{_FEW_EPOCHS}, {_LESS}")
    assert _LESS in str(notebook)
    done = _run(notebook, tmp_path)
    outputs = [
        [output.get("data", {}).get("text/html", output.get("text", "")) for output in cell.outputs]
        for cell in done.cells
        if cell.cell_type == "code"
    ]
    progress, run = outputs[1]
    assert re.search(r"Training vit with \w+ for 5 epochs", progress)
    assert "digits, version 1 (challenger, champion)" in run
    assert outputs[3][0].startswith("<iframe sandbox srcdoc=")
    assert "<table" in outputs[4][0]
    assert outputs[-1] == ["There is no setting training.epoch. Did you mean training.epochs?\n"]
    streams = [o.get("name") for cell in done.cells for o in cell.get("outputs", [])]
    assert "stderr" not in streams
