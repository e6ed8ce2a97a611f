"""The commands `patchline data`: in the terminal, as JSON, and what they write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

import patchline
from tests.conftest import Run, write_photos
from tests.made.servers import Command


def test_findings_are_named_for_people_and_programs(run_here: Command, tmp_path: Path) -> None:
    """They are no failure: exit code 0, counts and what follows, one JSON object, both files."""
    folder = write_photos(tmp_path / "photos", images=12)
    shutil.copy(folder / "across/003.png", folder / "down/line\nend.png")
    whole = (folder / "across/004.png").read_bytes()
    damaged = whole[:60] + whole[60:].translate(bytes(range(255, -1, -1)))
    (folder / "across/x.png").write_bytes(damaged)
    (folder / "across/y.png").write_bytes(whole[: len(whole) // 2])
    (folder / "across/notes.txt").write_text("of the photographer", "utf-8")
    out = run_here.out("data inspect", folder)
    for words in (
        "photos: 37 images in 3 classes; 1 unreadable file; 1 truncated image; 1 other file Short",
        *("label_conflict", "down/line\\nend.png", "inspection.html"),
        "--data.exclude .patchline/inspections/photos-",
    ):
        assert words in " ".join(out.split())
    assert "--check-labels" not in out
    answer = run_here.json("data inspect", folder, "--out", "report")
    assert answer["images"] == sum(answer["splits"].values()) == 37
    assert answer["classes"] == {"across": 12, "down": 13, "rising": 12}
    assert answer["sizes"]["median"] == 32
    [foreign] = [each for each in answer["findings"] if each["kind"] == "foreign"]
    assert foreign["files"] == ["across/notes.txt"]
    assert {"kind", "severity", "count", "files", "action"} <= foreign.keys()
    assert Path(answer["page"]) == (Path.cwd() / "report/inspection.html").resolve()
    assert Path(answer["table"]).read_text("utf-8").startswith("path,split,label,kind,severity,")
    assert not list(Path.cwd().glob(".patchline/splits/*.parquet"))


def test_a_model_finds_wrong_labels(
    run_here: Command, finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are warnings with what each looks like, in JSON, page and table.

    The terminal offers the registered model; one of other classes is refused by name.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished_run.tracking_uri)
    folder = Path(shutil.copytree(finished_run.folder / "photos", tmp_path / "photos"))
    model = patchline.load("photos")
    for label, wrong in (("across", "down"), ("rising", "across")):
        said = model.predict(sorted((folder / label).glob("*.png")))
        surest = said[said["label"] == label]["probability"].idxmax()
        Path(str(surest)).rename(folder / wrong / "wrong.png")
    inspected = ("data inspect", str(folder))
    out = run_here.out(*inspected)
    assert "Likely label errors:  add --check-labels photos\n" in out
    checked = (*inspected, "--check-labels", "photos")
    answer = run_here.json(*checked, "--out", "report")
    [found] = [each for each in answer["findings"] if each["kind"] == "label_error"]
    assert found["severity"] == "warning"
    assert {"down/wrong.png", "across/wrong.png"} <= set(found["files"][:5])
    assert found["details"]["down/wrong.png"].startswith("looks like across (")
    assert any("was trained or selected on" in note for note in answer["notes"])
    assert "looks like rising" in Path(answer["page"]).read_text("utf-8")
    assert 'label_error,warning,,"looks like rising (' in Path(answer["table"]).read_text("utf-8")
    (folder / "rising").rename(folder / "cat")
    shutil.rmtree(folder / "across")
    (folder / "down").rename(folder / "dog")
    refusal = "--check-labels photos: no image of the data has a class of this model"
    assert refusal in run_here.refusal(*checked)


@pytest.mark.slow
@pytest.mark.usefixtures("run_here", "prefect_server", "own_store")
def test_folds_judge_images_that_they_were_not_trained_on(tmp_path: Path) -> None:
    """Every image of the training has a verdict of its own; none counts as seen."""
    folder = write_photos(tmp_path / "photos", images=16)
    wrong = (folder / "across/003.png").rename(folder / "down/wrong.png")
    patchline.run(
        folder,
        preset="none",
        training={"epochs": 8, "folds": 2},
        evaluation={"explanations": False},
        promotion={"package_check": False},
    )
    found = patchline.inspect_data(folder, check_labels="photos", out=tmp_path / "report")
    judged = [note for note in found.notes if "judged by the folds of version 1 of photos" in note]
    assert len(judged) == 1
    assert not any("was trained or selected on" in note for note in found.notes)
    [errors] = [each for each in found.findings if each.kind == "label_error"]
    assert str(wrong.relative_to(folder)) in errors.files[:3]


def test_it_names_what_changed(run_here: Command, tmp_path: Path) -> None:
    """A moved class label and a deleted file are in the JSON object and in the words."""
    before = write_photos(tmp_path / "before", classes=2, images=4)
    after = Path(shutil.copytree(before, tmp_path / "after"))
    (after / "across/000.png").rename(after / "down/odd.png")
    (after / "across/001.png").unlink()
    answer = run_here.json("data diff", before, after)
    assert not answer["same"]
    assert answer["removed"] == ["across/001.png"]
    assert [each["path"] for each in answer["relabelled"]] == ["down/odd.png"]
    out = run_here.out("data diff", before, after)
    assert "down/odd.png (across -> down)" in out
    assert "no-such-run" in run_here.refusal("data diff", before, "no-such-run")
    flag = ("--data.label-column", "b")
    assert "--data.label-column has no effect" in run_here.refusal(
        "data diff", before, after, *flag
    )


NONE = ("--preset", "none")
"""Nothing is measured, which takes some seconds."""


def test_it_writes_a_picture_and_prints_its_path(run_here: Command, tmp_path: Path) -> None:
    """The picture has a column for each epoch; nothing else is left but the manifest.

    JSON has every setting, also those that depend on the data.
    """
    photos = write_photos(tmp_path / "photos", images=8, side=32)
    standard = ("data preview", str(photos), "--augmentation.name", "standard", *NONE)
    columns = ("--training.cutmix", "1", "--images", "4", "--epochs", "3", "--picture", "seen.png")
    assert run_here.out(*standard, *columns) == "seen.png\n"
    with Image.open("seen.png") as picture:
        assert min(picture.size) > 4 * 96
    assert not list(Path.cwd().glob(".patchline/prepared/*"))
    assert not list(Path.cwd().glob("mlflow.db"))
    answer = run_here.json(*standard)
    assert Path(answer["picture"]).parts[-2:] == (".patchline", "augmentation_preview.png")
    assert Path(answer["picture"]).is_file()
    assert answer["augmentation"]["name"] == "standard"
    assert answer["augmentation"]["horizontal_flip"] is False  # too few images to measure it


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--images", "0"], "--images 0"),
        (["--images", "100", "--epochs", "100"], "at most 1000"),
        (["--augmentation.name", "custom", *NONE], "augmentation.file"),
        (["--augmentation.name", "standart"], "standard"),
    ],
)
def test_wrong_input_is_one_sentence(run_here: Command, arguments: list[str], words: str) -> None:
    """Numbers that make no picture, a missing file and a misspelt name exit with code 2."""
    assert words in run_here.refusal("data preview", *arguments)
