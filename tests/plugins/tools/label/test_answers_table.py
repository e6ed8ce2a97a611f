"""The table of answers: written from a journal, shared, edited, and never lost."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchline.pipeline.data.labels.answer_columns import ANSWER_COLUMNS
from patchline.pipeline.data.labels.answers.answer import Answer, Verdict, new_batch, now
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable, read_table
from patchline.pipeline.errors import ConfigError, DataError, StorageError
from tests.patience import patient
from tests.plugins.tools.label.labelled import rows_of

ADA = "window-00001"


def _answer(path: str, *labels: str, by: str = "ada", batch: str = "") -> Answer:
    verdict: Verdict = "label" if labels else "unsure"
    return Answer(path, verdict, labels, by, now(), "random", batch=batch or new_batch())


@pytest.fixture
def table(tmp_path: Path) -> AnswersTable:
    return AnswersTable(tmp_path / "labels.csv")


def _labels(table: AnswersTable) -> dict[str, str]:
    return {row["path"]: row["label"] for row in rows_of(table.file)}


def test_an_answer_that_changes_replaces_its_row_and_the_journal_keeps_both(
    table: AnswersTable,
) -> None:
    """One row for each image that has a label; what was set aside has none."""
    assert not table.file.exists()  # nothing is labelled yet
    for answers in (
        [_answer("1.png", "rose")],
        [_answer("2.png"), _answer("3.png", "tulip")],
        [_answer("1.png", "tulip")],
    ):
        table.append(answers)
    assert _labels(table) == {"1.png": "tulip", "3.png": "tulip"}
    assert tuple(rows_of(table.file)[0]) == (*ANSWER_COLUMNS, "group")
    journal = table.journal.file.read_text().splitlines()
    assert [len(json.loads(line)["answers"]) for line in journal] == [1, 2, 1]
    table.append([_answer('=a,b;"c".png', "rose")])  # what a spreadsheet computes, and CSV quotes
    again = AnswersTable(table.file)
    assert (again.notes, '=a,b;"c".png' in again.standing()) == ([], True)


def test_what_was_taken_back_leaves_what_stood_before(table: AnswersTable) -> None:
    """Taking back is for one person at a time, and can be repeated."""
    table.append([_answer("1.png", "rose", batch=f"{ADA}.0")])
    table.append([_answer(path, "tulip", batch=f"{ADA}.1") for path in ("1.png", "2.png")])
    table.append([_answer("3.png", "rose", by="bob")])
    for expected in ("tulip", "rose"):
        batch = table.last_batch(ADA, "ada")
        assert batch[0].labels == (expected,)
        table.undo(batch)
    assert _labels(table) == {"3.png": "rose"}
    assert table.last_batch(ADA, "ada") == []


@pytest.mark.parametrize("early", [True, False])
def test_a_kill_between_journal_and_table_loses_nothing(
    table: AnswersTable, *, early: bool
) -> None:
    """The next one who opens it writes the table again; a half line of a crash is no answer."""
    table.append([_answer("1.png", "rose")])
    files = [table.file, table.beside("written")][: 2 if early else 1]
    before = [file.read_bytes() for file in files]
    table.append([_answer("2.png", "tulip")])
    for file, content in zip(files, before, strict=True):
        file.write_bytes(content)  # killed before the table was replaced
    half = b'{"event":"answers","answers":[{"path":"3.p'
    for more, notes in ((half, 0), (half + b'ng"}', 1)):  # within a line, behind an inner brace
        with table.journal.file.open("ab") as opened:
            opened.write(more)
        again = AnswersTable(table.file)
        assert len(again.notes) == notes
        again.append([_answer(f"{3 + notes}.png", "rose")])
    assert "line 3 of .patchline-labels.jsonl was cut off" in again.notes[0]
    table.file.unlink()
    assert any("written again" in note for note in AnswersTable(table.file).notes)
    assert [*_labels(table)] == [f"{number}.png" for number in range(1, 5)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"2.png", b"2\xff.png", "line 2 is not UTF-8"),
        (b'{"event"', b'x{"event"', "line 1 is not JSON"),
        (b'"path":"2.png",', b"", r"line 2 is not an event .*\(answers\.0\.path: field required"),
        (b'"verdict"', b'"colour":1,"verdict"', r"line 1 is not an event of this version"),
        (b"", None, "it cannot be read"),
    ],
)
def test_a_damaged_journal_is_named_and_nothing_is_lost(
    table: AnswersTable, tmp_path: Path, old: bytes, new: bytes | None, words: str
) -> None:
    """The table stays as it is, and counts where the journal is moved away."""
    for name in ("1.png", "2.png"):
        table.append([_answer(name, "rose")])
    before, journal = table.file.read_bytes(), table.journal.file
    content = journal.read_bytes()
    if new is None:
        journal.unlink()
        journal.mkdir()
    else:
        journal.write_bytes(content.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"journal of answers .*{words}.*Restore it from a backup"):
        AnswersTable(table.file)
    assert table.file.read_bytes() == before
    journal.rename(tmp_path / "away")
    assert [*AnswersTable(table.file).standing()] == [*_labels(table)] == ["1.png", "2.png"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_table_that_another_program_saves_is_kept_beside_and_can_be_imported(
    table: AnswersTable, tmp_path: Path, *, is_open: bool
) -> None:
    """A changed label, a removed row, an emptied label, a new row and column."""
    for number in range(4):
        table.append([_answer(f"{number}.png", "rose")])
    header, *rows = table.file.read_text().splitlines()
    changed, emptied = rows[1].replace("rose", "tulip"), rows[3].replace("rose", "")
    edited = [f"{header},patient", f"{rows[0]},p1", f"{changed},p2", f"{emptied},", "9.png,iris"]
    table.file.write_text("\n".join(edited) + "\n")
    if not is_open:
        table = AnswersTable(table.file)
    table.refresh()
    assert [*_labels(table).values()] == ["rose"] * 4
    assert "changes that its journal lacks: it is kept as labels.edited-" in table.notes[0]
    [beside] = tmp_path.glob("labels.edited-*.csv")
    assert beside.read_text().splitlines() == edited
    found = table.take_in(read_table(beside))
    assert ([each.path for each in found.answers], found.removed) == (["1.png", "9.png"], ["3.png"])
    assert {row["path"]: (row["label"], row["patient"]) for row in rows_of(table.file)} == {
        "0.png": ("rose", "p1"),
        "2.png": ("rose", ""),
        "1.png": ("tulip", "p2"),
        "9.png": ("iris", ""),
    }
    assert AnswersTable(table.file).take_in(read_table(beside)) == ([], [], [])


def test_rows_that_are_older_than_the_answers_change_nothing(
    table: AnswersTable, tmp_path: Path
) -> None:
    """Changed or not, of an image that was answered, set aside or taken back since."""

    def at(minute: int, path: str, *labels: str) -> Answer:
        return _answer(path, *labels)._replace(labeled_at=f"2026-01-01T00:{minute:02d}:00Z")

    data = [_answer(f"{number}.png", "rose")._replace(labeled_at="") for number in range(2)]
    table.begin(data, {})
    table.append([at(0, f"{number}.png", "rose")._replace(batch="b") for number in range(2, 6)])
    stale = tmp_path / "stale.csv"
    stale.write_text(table.file.read_text().replace("3.png,rose", "3.png,iris"))
    for number in (0, 2, 3):
        table.append([at(1, f"{number}.png", "tulip")])
    table.append([at(1, "4.png")])
    table.undo([table.standing()["5.png"]])
    before = table.file.read_text()
    found = table.take_in(read_table(stale))
    assert found == ([], [], ["0.png", "2.png", "3.png", "4.png", "5.png"])
    assert table.file.read_text() == before
    stale.write_text("path,label\n1.png,iris\n4.png,iris\n")  # nobody knows when
    assert [each.path for each in table.take_in(read_table(stale)).answers] == ["1.png", "4.png"]


@pytest.mark.parametrize(
    "form", ["%d/%m/%Y %H:%M", "%m/%d/%y %I:%M %p", "%d. %b %Y %H:%M:%S", ".5f"]
)
def test_a_spreadsheet_may_write_times_in_its_own_form(
    table: AnswersTable, tmp_path: Path, form: str
) -> None:
    """An edit of the newest answer counts, also back to an earlier label; an older row does not.

    Excel's numbers count days from the end of 1899.
    """
    times = ["2026-11-28T08:30:15Z", "2026-11-28T18:45:15Z"]
    for name, labels in (("0.png", "ab"), ("1.png", "ab"), ("2.png", "a")):
        for time, label in zip(times, labels, strict=False):
            table.append([_answer(name, label)._replace(labeled_at=time)])
    rows = [("0.png", "a", 1), ("1.png", "a", 0), ("2.png", "c", 0), ("9.png", "c", 0)]
    moments = list(map(dt.datetime.fromisoformat, times))
    written = [each.strftime(form) for each in moments]
    if form.startswith("."):
        written = [format(each.timestamp() / 86_400 + 25_569, form) for each in moments]
    edited = tmp_path / "edited.csv"
    lines = [f"{path},{label},{written[number]}" for path, label, number in rows]
    edited.write_text("\n".join(["path,label,labeled_at", *lines]))
    found = table.take_in(read_table(edited))
    assert ([each.path for each in found.answers], found.older) == (
        ["0.png", "2.png", "9.png"], ["1.png"]
    )  # fmt: skip
    table.append([_answer("9.png", "d")])
    later = tmp_path / "later.csv"
    later.write_text(f"path,label,labeled_at\n9.png,a,{now()}\n")
    assert len(table.take_in(read_table(later)).answers) == 1


def test_a_table_is_replaced_only_if_it_is_what_was_read(
    table: AnswersTable, tmp_path: Path
) -> None:
    """One that was changed within its size and time is kept beside; so is one with other rows."""
    table.append([_answer("1.png", "rose")])
    status = table.file.stat()
    content = table.file.read_text().replace("rose", "lily")
    with table.file.open("r+") as opened:
        opened.write(content)
    os.utime(table.file, ns=(status.st_atime_ns, status.st_mtime_ns))
    table.append([_answer("2.png", "rose")])
    assert [each.read_text() for each in tmp_path.glob("labels.edited-*")] == [content]
    own = "path,label\n1.png,rose\n1.png,lily\n2.png,\n"
    (tmp_path / "own.csv").write_text(own)
    AnswersTable(tmp_path / "own.csv").append([_answer("3.png", "rose")])
    assert [each.read_text() for each in tmp_path.glob("own.original-*")] == [own]
    assert [row["path"] for row in rows_of(tmp_path / "own.csv")] == ["1.png", "3.png"]


def test_another_table_is_not_replaced(tmp_path: Path) -> None:
    """A user's own table of that name is refused with the remedy, and stays as it is."""
    file = tmp_path / "labels.csv"
    file.write_text("image,class\n1.png,rose\n")
    with pytest.raises(DataError, match=r"has no column 'path'.*--table"):
        AnswersTable(file)
    assert file.read_text() == "image,class\n1.png,rose\n"


def test_an_own_table_of_paths_and_labels_is_continued(tmp_path: Path) -> None:
    """Its rows count as answers, and its other columns stay."""
    file = tmp_path / "labels.csv"
    file.write_text("path;label;split\n1.png;rose;test\n")  # as some spreadsheets write it
    AnswersTable(file).append([_answer("2.png", "tulip")])
    columns = ("path", "label", "split", "source")
    assert [[row[column] for column in columns] for row in rows_of(file)] == [
        ["1.png", "rose", "test", "table"], ["2.png", "tulip", "", "random"]
    ]  # fmt: skip


def test_only_one_page_is_open_on_a_table(table: AnswersTable) -> None:
    """A second one would ask two people about the same image."""
    other = AnswersTable(table.file)
    with (
        table.open_for_people("http://127.0.0.1:1"),
        pytest.raises(ConfigError, match=r"being labelled at http://127\.0\.0\.1:1"),
        other.open_for_people("http://127.0.0.1:2"),
    ):
        pass
    with other.open_for_people("http://127.0.0.1:3"):
        pass


_APPEND_MANY = """
import sys
from pathlib import Path
from patchline.pipeline.data.labels.answers.answer import Answer
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable

table, name = AnswersTable(Path(sys.argv[1])), sys.argv[2]
for number in range(20):
    table.append([Answer(f"{name}{number}.png", "label", ("rose",), name)])
"""


def test_processes_that_append_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """A page and a served model may write the same table."""
    file = tmp_path / "labels.csv"
    commands = [[sys.executable, "-c", _APPEND_MANY, str(file), name] for name in ("a", "b")]
    processes = [subprocess.Popen(command, cwd=Path(__file__).parents[3]) for command in commands]
    assert [process.wait(patient(60)) for process in processes] == [0, 0]
    assert len(rows_of(file)) == 40
    assert len((tmp_path / ".patchline-labels.jsonl").read_text().splitlines()) == 40


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Nothing is written there."""
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=r"every user .*chmod go-w .* name a table in a folder"):
        AnswersTable(tmp_path / "labels.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["labels.csv", ".patchline-labels.jsonl", ".patchline-labels.lock"]
)
def test_links_in_place_of_its_files_are_refused(
    table: AnswersTable, tmp_path: Path, name: str
) -> None:
    """What they lead to stays as it is, also if a link comes later."""
    own = tmp_path / "own.txt"
    own.write_text("mine")
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(own)
    with pytest.raises(ConfigError, match=f"{name} is a link to .*, and a table of answers"):
        AnswersTable(table.file)
    if name.endswith("jsonl"):
        with pytest.raises(StorageError, match="is a link"):
            table.append([_answer("1.png", "rose")])
    assert own.read_text() == "mine"


def _groups(table: AnswersTable) -> dict[str, str]:
    return {row["path"]: row["group"] for row in rows_of(table.file)}


def test_near_duplicates_are_one_group_whenever_they_are_answered(table: AnswersTable) -> None:
    """Those answered at once, and those that are found later; the older group keeps its name."""
    table.append([_answer(path, "rose", batch=f"{ADA}.0") for path in ("1.png", "2.png")])
    for path in ("3.png", "4.png", "5.png"):
        table.append([_answer(path, "rose", by="bob")])
    one, other, *alone = _groups(table).values()
    assert one == other != ""
    assert set(alone) == {""}
    table.group([["3.png", "4.png"], ["4.png", "2.png"], ["8.png", "9.png"]])
    table.undo(table.last_batch(ADA, "ada"))
    table.append([_answer("9.png", "tulip")])
    again = AnswersTable(table.file)
    found = _groups(again)
    assert found.pop("9.png") not in {"", one}
    assert found == {"3.png": one, "4.png": one, "5.png": ""}
    size = table.journal.file.stat().st_size
    again.group([["2.png", "3.png"]])
    assert table.journal.file.stat().st_size == size, "what is known is not written again"


def test_groups_that_a_person_names_stay_and_take_near_duplicates_in(
    table: AnswersTable, tmp_path: Path
) -> None:
    """A column `group` of the data, or one that was edited."""
    data = [_answer(f"{number}.png", "rose")._replace(batch="") for number in range(3)]
    table.begin(data, {"split": ["", "", ""], "group": ["patient 7", "", ""]})
    table.group([["0.png", "1.png"]])
    assert [*_groups(table).values()] == ["patient 7", "patient 7", ""]
    edited = tmp_path / "edited.csv"
    edited.write_text(table.file.read_text().replace("patient 7", "patient 8"))
    table.take_in(read_table(edited))
    table.group([["1.png", "2.png"]])
    assert set(_groups(table).values()) == {"patient 8"}
