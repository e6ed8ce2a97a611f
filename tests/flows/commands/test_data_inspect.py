"""`patchline data inspect`: a table in the terminal, JSON, a page, and a table of findings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import patchline
from tests.conftest import Run, write_photos

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
    whole = (folder / "across/004.png").read_bytes()
    (folder / "across/x.png").write_bytes(
        whole[:60] + whole[60:].translate(bytes(range(255, -1, -1)))
    )
    (folder / "across/y.png").write_bytes(whole[: len(whole) // 2])
    (folder / "across/notes.txt").write_text("of the photographer", "utf-8")
    code, out, err = run_here("data", "inspect", str(folder))
    assert code == 0, err
    line = (
        "photos: 37 images in 3 classes; 1 unreadable file; 1 truncated image; 1 other file Shorter"
    )
    assert line in " ".join(out.split())
    assert "label_conflict" in out
    assert "down/line\\nend.png" in out
    assert "inspection.html" in out
    assert "--data.exclude .patchline/inspections/photos-" in out
    assert "--check-labels" not in out


def test_the_model_of_the_data_is_offered_to_check_labels(
    run_here: RunHere, finished_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where earlier runs have registered a model, the terminal names it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished_run.tracking_uri)
    code, out, err = run_here("data", "inspect", str(finished_run.folder / "photos"))
    assert code == 0, err
    assert "Likely label errors:  add --check-labels photos\n" in out


def test_folder_that_is_not_there_is_a_sentence(run_here: RunHere) -> None:
    """Data that cannot be read exits with code 2."""
    code, out, err = run_here("data", "inspect", "no/such")
    assert code == 2
    assert out == ""
    assert "There is no folder" in err


@pytest.fixture
def wrong_labels(finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the photos of a finished run, the surest of two classes in the wrong folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished_run.tracking_uri)
    folder = Path(shutil.copytree(finished_run.folder / "photos", tmp_path / "photos"))
    model = patchline.load("photos")
    for label, wrong in (("across", "down"), ("rising", "across")):
        said = model.predict(sorted((folder / label).glob("*.png")))
        surest = said[said["label"] == label]["probability"].idxmax()
        Path(str(surest)).rename(folder / wrong / "wrong.png")
    return folder


def test_a_model_finds_wrong_labels(run_here: RunHere, wrong_labels: Path) -> None:
    """They are warnings with what each looks like, in JSON, page and table."""
    code, out, err = run_here(
        "data",
        "inspect",
        str(wrong_labels),
        "--check-labels",
        "photos",
        "--json",
        "--out",
        "report",
    )
    assert code == 0, err
    answer = json.loads(out)
    [found] = [each for each in answer["findings"] if each["kind"] == "label_error"]
    assert found["severity"] == "warning"
    assert {"down/wrong.png", "across/wrong.png"} <= set(found["files"][:5])
    assert found["details"]["down/wrong.png"].startswith("looks like across (")
    assert any("was trained or selected on" in note for note in answer["notes"])
    assert "looks like rising" in Path(answer["page"]).read_text("utf-8")
    assert 'label_error,warning,,"looks like rising (' in Path(answer["table"]).read_text("utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("run_here")
def test_folds_judge_images_that_they_were_not_trained_on(tmp_path: Path) -> None:
    """Every image of the training has a verdict of its own; none counts as seen."""
    folder = write_photos(tmp_path / "photos", images=20)
    wrong = (folder / "across/003.png").rename(folder / "down/wrong.png")
    patchline.run(
        folder, preset="none", model={"size": "micro"}, training={"epochs": 8, "folds": 3}
    )
    found = patchline.inspect_data(folder, check_labels="photos", out=tmp_path / "report")
    judged = [note for note in found.notes if "judged by the folds of version 1 of photos" in note]
    assert len(judged) == 1
    assert not any("was trained or selected on" in note for note in found.notes)
    [errors] = [each for each in found.findings if each.kind == "label_error"]
    assert str(wrong.relative_to(folder)) in errors.files[:3]


def test_a_model_of_other_classes_cannot_check_labels(
    run_here: RunHere, finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and its classes are named."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished_run.tracking_uri)
    folder = write_photos(tmp_path / "animals", classes=2, images=4)
    (folder / "across").rename(folder / "cat")
    (folder / "down").rename(folder / "dog")
    code, out, err = run_here("data", "inspect", str(folder), "--check-labels", "photos")
    assert (code, out) == (2, "")
    assert "--check-labels photos: no image of the data has a class of this model" in err


def test_a_preset_adds_the_plan(tmp_path: Path) -> None:
    """The plan stands in the result and on the page, and names the data that it is for."""
    folder = write_photos(tmp_path / "photos", images=8)
    found = patchline.inspect_data(folder, preset="quick", out=tmp_path / "report")
    assert found.plan[0].startswith("model: ")
    assert any("training images of 32 pixels in 3 classes" in line for line in found.plan)
    assert "Suggested plan" in found.path.read_text("utf-8")
    assert patchline.inspect_data(folder, out=tmp_path / "other").plan == ()
