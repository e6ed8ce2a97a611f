"""`patchline data inspect`: a table in the terminal, JSON, a page, and a table of findings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.conftest import write_photos

RunHere = Callable[..., tuple[int, str, str]]


def test_json_page_and_table_name_the_leak(run_here: RunHere, tmp_path: Path) -> None:
    """Findings are no failure: exit code 0, one JSON object, and both files."""
    folder = write_photos(tmp_path / "photos", images=12)
    (folder / "across/notes.txt").write_text("words")
    code, out, err = run_here("data", "inspect", str(folder), "--json", "--out", "report")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["images"] == 36
    assert answer["classes"] == {"across": 12, "down": 12, "rising": 12}
    assert sum(answer["splits"].values()) == 36
    assert answer["sizes"]["median"] == 32
    [foreign] = [each for each in answer["findings"] if each["kind"] == "foreign"]
    assert foreign["files"] == ["across/notes.txt"]
    assert {"kind", "severity", "count", "files", "action"} <= foreign.keys()
    assert Path(answer["page"]) == (Path.cwd() / "report/inspection.html").resolve()
    assert Path(answer["table"]).read_text("utf-8").startswith("path,split,label,kind,severity,")
    assert not list(Path.cwd().glob(".patchline/splits/*.parquet"))


def test_terminal_names_counts_findings_and_files(run_here: RunHere, tmp_path: Path) -> None:
    """A person reads what was found, what follows, and where the page is."""
    folder = write_photos(tmp_path / "photos", images=12)
    shutil.copy(folder / "across/003.png", folder / "down/line\nend.png")
    code, out, err = run_here("data", "inspect", str(folder))
    assert code == 0, err
    assert "photos: 37 images in 3 classes" in out
    assert "label_conflict" in out
    assert "down/line\\nend.png" in out
    assert "inspection.html" in out
    assert "--data.exclude .patchline/inspections/photos-" in out


def test_folder_that_is_not_there_is_a_sentence(run_here: RunHere) -> None:
    """Data that cannot be read exits with code 2."""
    code, out, err = run_here("data", "inspect", "no/such")
    assert code == 2
    assert out == ""
    assert "There is no folder" in err
