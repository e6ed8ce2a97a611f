"""Findings of an inspection are corrected on the page, and the corrections go to the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.labels.answers.answer import Answer, now
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.pipeline.errors import ConfigError, DataError
from patchline.plugin_api import ImageListing, ListedImage, Split
from patchline.plugins.tools.label.command import LabelPageConfig, label
from patchline.plugins.tools.label.pool import Pool, data_labels, label_findings
from patchline.plugins.tools.label.ranking import ImageOrder
from patchline.plugins.tools.label.server.advisor import Advisor
from patchline.plugins.tools.label.session import Person, Session
from tests.plugins.tools.label.labelled import rows_of, write_images

_HEADER = "path,split,label,kind,severity,exclude,detail\n"
ADA = Person("ada-00000001", "ada")


def test_only_findings_on_labels_are_asked_about(tmp_path: Path) -> None:
    """With the label that the data has; without any, the command that finds them is named."""
    findings = tmp_path / "findings.csv"
    rows = ["b.png,train,cat,label_error,warning,,x", "a.png,test,dog,blurred,note,,x"]
    findings.write_text(_HEADER + "\n".join(rows) + "\n")
    assert label_findings(tmp_path).labels == {"b.png": ("cat",)}
    assert ImageOrder(["a", "b"], seed=0, listed=["b"]).next(lambda _: True) == ("b", "finding")
    findings.write_text(_HEADER)
    with pytest.raises(DataError, match="--check-labels MODEL"):
        label_findings(tmp_path)
    with pytest.raises(DataError, match=r"There are no findings at .*--check-labels MODEL"):
        label_findings(tmp_path / "absent.csv")
    findings.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        label_findings(tmp_path)


def test_the_table_of_corrections_holds_every_label_and_split(tmp_path: Path) -> None:
    """A run trains on all images, with the corrected labels; a correction can be taken back."""
    write_images(tmp_path, 2)
    named: list[tuple[str, Split]] = [
        ("000.png", "test"),
        ("001.png", "train"),
        ("gone.png", "train"),
    ]
    images = [ListedImage(path, "rose", split) for path, split in named]
    listing = ImageListing(name="flowers", root=tmp_path, images=images)
    listed = data_labels(listing, Pool(tmp_path, tmp_path))
    table = AnswersTable(tmp_path / "labels.csv")
    table.begin(listed.answers, listed.columns)
    table.append([Answer("001.png", "label", ("tulip",), "ada", now(), "finding", batch="b")])
    rows = {row["path"]: (row["label"], row["split"]) for row in rows_of(table.file)}
    assert rows == {"000.png": ("rose", "test"), "001.png": ("tulip", "train")}
    again = AnswersTable(table.file)
    again.undo(again.last_batch("another-page", "ada"))
    assert {row["label"] for row in rows_of(table.file)} == {"rose"}


def _page(folder: Path, table: Path, findings: Path) -> Session:
    """Return what a start of the page on some findings asks."""
    pool = Pool(folder, table.parent)
    answers = AnswersTable(table)
    found = label_findings(findings)
    given = found.of_pool(pool)
    answers.add_classes(("cat", "dog"))
    answers.begin_round(found.digest)
    order = ImageOrder(list(pool.images), 0, list(given))
    return Session(pool, answers, order, Advisor(pool, answers, order, None), given)


def _answer_all(page: Session, label: str) -> list[str]:
    """Answer every finding, and return the names of the images."""
    names = []
    while offers := page.next(ADA, [], 1):
        names.append(page.pool.images[offers[0].key].name)
        page.answer(ADA, [offers[0].key], "label", [label], saw_suggestion=False)
    return names


def test_a_finding_is_asked_about_whatever_the_table_says(tmp_path: Path) -> None:
    """In an own table beside or above the images, and in a later round about the same image."""
    photos, table = write_images(tmp_path / "photos", 2), tmp_path / "animals.csv"
    table.write_text("path,label\nphotos/000.png,cat\nphotos/001.png,cat\n")
    findings = tmp_path / "findings.csv"
    row = "photos/001.png,train,{},label_error,warning,,\n"
    findings.write_text(_HEADER + row.format("cat"))
    page = _page(photos, table, findings)
    assert _answer_all(page, "dog") == ["001.png"]
    assert page.progress()["labeled"] == page.progress()["images"] == 1
    labels = [(row["label"], row["source"]) for row in rows_of(table)]
    assert labels == [("cat", "table"), ("dog", "finding")]
    assert page.undo(ADA)
    for expected in (["001.png"], []):  # another start continues the round
        assert _answer_all(_page(photos, table, findings), "dog") == expected
    findings.write_text(_HEADER + row.format("dog"))
    assert _answer_all(_page(photos, table, findings), "cat") == ["001.png"]
    assert {row["label"] for row in rows_of(table)} == {"cat"}


def test_an_image_that_was_chosen_stays_so_when_its_label_is_corrected(tmp_path: Path) -> None:
    """Otherwise a run would test on it, as on images that nobody chose."""
    photos, table = write_images(tmp_path / "photos", 2), tmp_path / "labels.csv"
    findings, rows = tmp_path / "findings.csv", _HEADER
    for path, source in (("photos/000.png", "random"), ("photos/001.png", "uncertain")):
        answer = Answer(path, "label", ("cat",), "ada", now(), source, batch=path)
        AnswersTable(table).append([answer])
        rows += f"{path},train,cat,label_error,warning,,\n"
    findings.write_text(rows)
    assert len(_answer_all(_page(photos, table, findings), "dog")) == 2
    corrected = {row["path"]: (row["label"], row["source"]) for row in rows_of(table)}
    assert corrected == {
        "photos/000.png": ("dog", "finding"),
        "photos/001.png": ("dog", "uncertain"),
    }


def test_folders_that_are_not_the_classes_of_the_findings_make_no_labels(tmp_path: Path) -> None:
    """The findings are on a table of another name; the sentence says how to name it."""
    write_images(tmp_path / "photos/2024", 2)
    findings = tmp_path / "findings.csv"
    findings.write_text(f"{_HEADER}2024/001.png,train,cat,label_error,warning,,\n")
    with pytest.raises(ConfigError, match=r"not those of .*photos.*--table"):
        label(tmp_path / "photos", findings=findings, listen=LabelPageConfig(port=0))
    assert not list((tmp_path / "photos").glob("*.csv"))
