"""Cells of tables that people open in a spreadsheet."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from patchline.flows.commands.data import write_inspection
from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.manifests.left_out import read_exclusion, with_exclusion
from patchline.pipeline.evaluation.inspection.findings import write_table
from patchline.pipeline.workspace.files.table_cells import plain_cell, table_cell
from tests.conftest import write_photos


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("-rf", "'-rf"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("'=1", "''=1"),
        ("-0.5", "-0.5"),
        ("'quoted'", "'quoted'"),
        ("\t=1", r"\t=1"),
        ("a\x1b]0;t\x07b", r"a\x1b]0;t\x07b"),
        ("two\nlines\r", "two\nlines\\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        (
            "M\u00fcller \u732b \U0001f468\u200d\U0001f469",
            "M\u00fcller \u732b \U0001f468\u200d\U0001f469",
        ),
        ("", ""),
    ],
)
def test_cell_is_text(text: str, cell: str) -> None:
    """What a spreadsheet would compute gets an apostrophe, which can be taken away again."""
    assert table_cell(text) == cell
    if text.isprintable():
        assert plain_cell(cell) == text


def test_findings_of_odd_names_can_be_given_back(tmp_path: Path) -> None:
    """The table of findings holds no formula and no escape, and excludes the right files."""
    photos = write_photos(tmp_path / "photos", classes=2, images=6)
    odd = ["=1+1.png", "-x.png", "a\x1b[2J.png", "\u202eb.png", "two\nlines.png"]
    for number, name in enumerate(odd):  # copies, and as such findings
        down = (photos / "down" / f"{number:03d}.png").rename(photos / "down" / name)
        (photos / name).write_bytes(down.read_bytes())
    found, folder = write_inspection(build_config(str(photos)), tmp_path / "out", with_plan=False)
    assert not {"\x1b", "\u202e"} & set((folder / "findings.csv").read_text("utf-8"))
    table = pd.read_csv(folder / "findings.csv", keep_default_na=False)
    assert not table["path"].str.match(r"[=+@-]").any()
    table.assign(exclude="yes").to_csv(folder / "findings.csv", index=False)
    excluded, notes = with_exclusion(found.manifest, read_exclusion(folder / "findings.csv"))
    assert not [note for note in notes if "not in the data" in note]
    named = {path for each in found.result.findings for path in each.files}
    usable = found.manifest["path"].isin(named) & (found.manifest["status"] == "ok")
    assert usable.any()
    assert (excluded.loc[usable, "status"] == "excluded").all()
    write_table(found.result, found.manifest, folder / "findings.csv")
    again = pd.read_csv(folder / "findings.csv", keep_default_na=False)
    assert (again["exclude"] == "yes").all()
