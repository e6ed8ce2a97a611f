"""Findings of an inspection are corrected on the page, and the corrections go to the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.flows.commands.label import label
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.labelling.answer import Answer, now
from patchline.pipeline.labelling.answers_table import AnswersTable
from patchline.pipeline.labelling.findings import data_labels, label_findings
from patchline.pipeline.labelling.image_order import ImageOrder
from patchline.pipeline.labelling.pool import Pool
from patchline.pipeline.labelling.server.advisor import Advisor
from patchline.pipeline.labelling.session import Person, Session
from patchline.plugin_api import ImageListing, ListedImage
from tests.pipeline.labelling.labelled import rows_of, write_images

_HEADER = "path,split,label,kind,severity,exclude,detail\n"
ADA = Person("ada-00000001", "ada")


def test_only_findings_on_labels_are_asked_about(tmp_path: Path) -> None:
    """With the label that the data has, and in the order of the table."""
    rows = ["b.png,train,cat,label_error,warning,,x", "a.png,test,dog,blurred,note,,x"]
    (tmp_path / "findings.csv").write_text(_HEADER + "\n".join(rows) + "\n")
    assert label_findings(tmp_path).labels == {"b.png": ("cat",)}
    order = ImageOrder(["a", "b"], seed=0, listed=["b"])
    chosen = order.next(lambda _: True)
    assert chosen is not None
    assert chosen == ("b", "finding")


def test_a_table_without_such_findings_is_refused(tmp_path: Path) -> None:
    """With the command that finds them."""
    (tmp_path / "findings.csv").write_text(_HEADER)
    with pytest.raises(DataError, match="--check-labels MODEL"):
        label_findings(tmp_path)
    with pytest.raises(DataError, match=r"There are no findings at .*--check-labels MODEL"):
        label_findings(tmp_path / "absent.csv")
    (tmp_path / "findings.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        label_findings(tmp_path)


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
    again.undo(again.last_batch("another-page", "ada"))
    rows = {row["path"]: (row["label"], row["split"]) for row in rows_of(table.file)}
    assert rows["001.png"] == ("rose", "train")


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
    photos = write_images(tmp_path / "photos", 3)
    rows = "".join(f"photos/00{number}.png,cat\n" for number in range(3))
    table = tmp_path / "animals.csv"
    table.write_text(f"path,label\n{rows}")
    findings = tmp_path / "findings.csv"
    findings.write_text(f"{_HEADER}photos/001.png,train,cat,label_error,warning,,\n")
    page = _page(photos, table, findings)
    assert page.progress()["labeled"] == 0
    assert _answer_all(page, "dog") == ["001.png"]
    assert page.progress()["labeled"] == page.progress()["images"] == 1
    assert [row["label"] for row in rows_of(table)] == ["cat", "cat", "dog"]
    assert [row["source"] for row in rows_of(table)] == ["table", "table", "finding"]
    assert page.undo(ADA)
    page = _page(photos, table, findings)  # another start continues the round
    assert _answer_all(page, "dog") == ["001.png"]
    assert _answer_all(_page(photos, table, findings), "dog") == []
    findings.write_text(f"{_HEADER}photos/001.png,train,dog,label_conflict,warning,,\n")
    assert _answer_all(_page(photos, table, findings), "cat") == ["001.png"]
    assert {row["label"] for row in rows_of(table)} == {"cat"}


def test_an_image_that_was_chosen_stays_so_when_its_label_is_corrected(tmp_path: Path) -> None:
    """Otherwise a run would test on it, as on images that nobody chose."""
    photos, table = write_images(tmp_path / "photos", 2), tmp_path / "labels.csv"
    sources = {"photos/000.png": "random", "photos/001.png": "uncertain"}
    answers = AnswersTable(table)
    for path, source in sources.items():
        answers.append([Answer(path, "label", ("cat",), "ada", now(), source, batch=path)])
    findings = tmp_path / "findings.csv"
    rows = "".join(f"{path},train,cat,label_error,warning,,\n" for path in sources)
    findings.write_text(f"{_HEADER}{rows}")
    assert len(_answer_all(_page(photos, table, findings), "dog")) == 2
    corrected = {row["path"]: (row["label"], row["source"]) for row in rows_of(table)}
    assert corrected == {
        "photos/000.png": ("dog", "finding"),
        "photos/001.png": ("dog", "uncertain"),
    }


@pytest.mark.parametrize("year", ["2024", ""])
def test_folders_that_are_not_the_classes_of_the_findings_make_no_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, year: str
) -> None:
    """The findings are on a table of another name; the sentence says how to name it."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos" / year, 2)
    (tmp_path / "findings.csv").write_text(
        f"{_HEADER}{Path(year, '001.png')},train,cat,label_error,warning,,\n"
    )
    with pytest.raises(ConfigError, match=r"not those of .*photos.*--table"):
        label(Path("photos"), findings=Path("findings.csv"), port=0)
    assert not list((tmp_path / "photos").glob("*.csv"))
