"""The table of answers, `labels.csv`, and the journal that it is written from.

An answer is appended to the journal, `.patchline-labels.jsonl`, which is synced; then the table is
replaced as a whole, so that it has one row for each image whose label stands. Several processes may
append: a lock on a file beside them keeps them in order, and each reads what the others wrote.

The table is a copy of the journal. One that another program has changed is kept beside it under
another name, until somebody imports it; one that is there before any answer is imported at once. A
row of it is older than what the journal says of its image if it has the label of an earlier answer,
or the time of one that was answered or taken back since. Such a row changes nothing.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import glob
import hashlib
import io
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.data.labels.answer_columns import (
    ANSWER_COLUMNS,
    ANSWER_GROUP,
    LABEL,
    NEAR,
    PATH,
    TABLE,
)
from patchline.pipeline.data.labels.answers.answer import (
    SOMEBODY,
    Answer,
    client_of,
    label_cell,
    labels_in,
    looks_like_list,
    new_batch,
    now,
)
from patchline.pipeline.data.labels.answers.journal import Event, Journal, Standing, name_of_group
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace.files.access import check_no_link, check_own_folder
from patchline.pipeline.workspace.files.atomic_files import (
    open_replacing,
    storage_errors,
    write_text,
)
from patchline.pipeline.workspace.files.file_locks import hold_lock, try_lock
from patchline.pipeline.workspace.files.table_cells import plain_cell, table_cell

logger = logging.getLogger(__name__)
TABLE_NAME = "labels.csv"
_QUOTED = re.compile(r'[",;|\t\r\n]|^\s|\s$|^$')
"""What a cell has quotes for, so that no reader takes a part of it for a delimiter."""


class AnswersTable:
    """The answers of one table; its methods may be called by several threads.

    Args:
        file: the table, which need not exist.
        task: whether an image of a new table has one label or a set of them; None leaves it open.

    Attributes:
        notes: what a person should know of the files, such as a change by another program; they
            are logged, too.

    Raises:
        ConfigError: if others may write to its folder, or one of its files is a link.
        DataError: if the file is another table, or cannot be read.
        StorageError: if it may not be written.
    """

    def __init__(self, file: Path, task: Task | None = None) -> None:
        self.file = file.absolute()
        self.folder = self.file.parent
        self.journal = Journal(self.file.with_name(f".patchline-{file.stem}.jsonl"))
        self.notes: list[str] = []
        self._check_place()
        self._lock_file = self.beside("lock")
        self._written_file = self.beside("written")
        """The digests of the table as it was written last, and before: it has one of them unless
        another program has changed it."""
        self._mutex = threading.RLock()
        self._events: list[Event] = []
        self._standing = Standing()
        self._lines: dict[str, str] = {}
        self._stamp: tuple[int, ...] | None = None
        self._digest = ""
        self._written: int | None = None
        """The number of events that the table holds."""
        with self._current():
            if task is not None and not self._standing.tasks:
                self._append({"event": "task", "task": task})
            self._write()
        for number in self.journal.cut:
            self._note(
                f"line {number} of {self.journal.file.name} was cut off when a process was killed, "
                "and counts for nothing"
            )

    def _check_place(self) -> None:
        """Refuse a folder where others may write, and links in place of the files."""
        if self.folder.exists():
            remedy = "name a table in a folder of your own"
            check_own_folder(self.folder, "The folder of the table", remedy)
        beside = self.file.parent.glob(f".patchline-{glob.escape(self.file.stem)}.*")
        for each in (self.file, *beside):
            check_no_link(each, "a table of answers")

    def beside(self, name: str) -> Path:
        """Return the path of a hidden file beside the table."""
        return self.file.with_name(f".patchline-{self.file.stem}.{name}")

    @contextmanager
    def open_for_people(self, url: str) -> Iterator[None]:
        """Hold the table for the people who use one page, while the block runs.

        Args:
            url: the address of the page.

        Raises:
            ConfigError: if another page is open on it, because people would get the same images.
        """
        place = self.beside("page")
        with try_lock(self.beside("page.lock")) as is_free:
            if not is_free:
                other = place.read_text("utf-8").strip() if place.is_file() else "another address"
                raise ConfigError(
                    f"{self.file} is being labelled at {other}, and two pages would ask two people "
                    "about the same image. Open that page."
                )
            write_text(place, f"{url}\n")
            try:
                yield
            finally:
                place.unlink(missing_ok=True)

    # -- reading --

    @property
    def task(self) -> Task:
        """Whether an image has one class, or any number of labels."""
        with self._mutex:
            return self._standing.tasks[-1] if self._standing.tasks else SINGLE_LABEL

    @property
    def has_task(self) -> bool:
        """Whether somebody has said which task it is."""
        with self._mutex:
            return bool(self._standing.tasks)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order in which they were added."""
        with self._mutex:
            return list(self._standing.classes)

    def answer(self, path: str) -> Answer | None:
        """Return the answer that stands for an image; None without one."""
        with self._mutex:
            return self._standing.answer(path)

    def is_of_round(self, path: str) -> bool:
        """Return whether the answer that stands for an image was given in the last round."""
        with self._mutex:
            return self._standing.is_of_round(path)

    def standing(self) -> dict[str, Answer]:
        """Return the answer that stands for each image that has one, by path."""
        with self._mutex:
            return {path: each[-1] for path, each in self._standing.history.items() if each}

    def last_batch(self, client: str, person: str) -> list[Answer]:
        """Return what a person answered last and has not taken back; empty if there is nothing.

        On any page, if the person has a name; what was answered on this page without a name is the
        person's, too.

        Args:
            client: the page.
            person: the name of the person who uses it; empty if it is not known.
        """

        def is_own(answer: Answer) -> bool:
            if answer.labeled_by not in ("", SOMEBODY):
                return answer.labeled_by == person
            return bool(answer.batch) and client_of(answer.batch) == client

        with self._mutex:
            for event in reversed(self._events):
                if event["event"] != "answers":
                    continue
                own = [
                    answer
                    for answer in map(Answer.of_json, event["answers"])
                    if answer.batch and is_own(answer) and self._standing.has(answer)
                ]
                if own:
                    return own
        return []

    # -- writing --

    def refresh(self) -> None:
        """Read what other processes have written since, and look whether one changed the table."""
        with self._current():
            self._write()

    def append(self, answers: Sequence[Answer]) -> None:
        """Write answers that were given at once.

        Raises:
            StorageError: if the disk is full or read-only; none of them counts then.
        """
        if not answers:
            return
        with self._current():
            self._append({"event": "answers", "answers": [each.to_json() for each in answers]})
            self._write()

    def begin(self, answers: Sequence[Answer], columns: Mapping[str, Sequence[str]]) -> None:
        """Write what the data says of images that have no answer yet.

        Args:
            answers: the answers that the data gives.
            columns: groups and further columns, with a cell for each answer; only a new table gets
                them.
        """
        with self._current():
            new = [each for each in answers if each.path not in self._standing.history]
            event: Event = {"event": "answers", "answers": [each.to_json() for each in new]}
            if columns and not self._lines and not self._standing.columns:
                paths = [each.path for each in answers]
                event["columns"] = {
                    name: dict(zip(paths, each, strict=True)) for name, each in columns.items()
                }
            if new:
                self._append(event)
                self._write()

    def take_in(self, rows: list[Row]) -> Differences:
        """Write the labels and the further columns of a table that somebody has edited."""
        with self._current():
            found = self._take(rows)
            self._write()
            return found

    def group(self, groups: Iterable[Sequence[str]]) -> None:
        """Write which images are near duplicates of one another, whenever they were answered.

        Args:
            groups: the paths of the images of each.
        """
        with self._current():
            new = [list(paths) for paths in groups if not self._standing.are_grouped(paths)]
            if new:
                named = {name_of_group(new_batch()): paths for paths in new}
                self._append({"event": "groups", "groups": named, "at": now()})
                self._write()

    def begin_round(self, findings: str) -> None:
        """Ask about findings, whatever was answered before; a round that was left is continued.

        Args:
            findings: the digest of the findings.
        """
        with self._current():
            if findings != self._standing.findings:
                self._append({"event": "findings", "digest": findings, "at": now()})

    def undo(self, batch: Sequence[Answer]) -> None:
        """Take back answers that were given at once; what stood before them stands again."""
        with self._current():
            paths = [each.path for each in batch]
            self._append({"event": "undo", "batch": batch[0].batch, "paths": paths, "at": now()})
            self._write()

    def add_classes(self, names: Iterable[str]) -> None:
        """Add names of classes, which need no image yet."""
        with self._current():
            new = [name for name in dict.fromkeys(names) if name not in self._standing.classes]
            if new:
                self._append({"event": "classes", "names": new, "at": now()})

    # -- the files --

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the table, up to date."""
        with self._mutex, hold_lock(self._lock_file):
            is_first = not self._events
            for event in self.journal.new_events():
                self._apply(event)
            self._check_copy(is_first=is_first)
            yield

    def _append(self, event: Event) -> None:
        self.journal.append(event)
        for each in self.journal.new_events():
            self._apply(each)

    def _apply(self, event: Event) -> None:
        self._events.append(event)
        self._standing.apply(event)
        grouped = [path for paths in event.get("groups", {}).values() for path in paths]
        changed = [*(each["path"] for each in event.get("answers", ())), *event.get("paths", ())]
        if event["event"] == "task":
            changed = list(self._standing.history)
        for path in changed:
            self._lines.pop(path, None)
        for path in dict.fromkeys(
            p for each in (*changed, *grouped) for p in self._standing.group_of(each)
        ):
            history = self._standing.history.get(path)
            if history and history[-1].verdict == "label":
                self._lines[path] = self._line(history[-1])
        if event.get("columns"):
            for path in self._lines:
                self._lines[path] = self._line(self._standing.history[path][-1])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table."""
        further = (name for name in self._standing.columns if name != ANSWER_GROUP)
        return (*ANSWER_COLUMNS, ANSWER_GROUP, *further)

    def _line(self, answer: Answer) -> str:
        further = (self._cell(answer.path, name) for name in self.columns[len(ANSWER_COLUMNS) :])
        return ",".join(map(_quote, (*_row(answer, self.task), *further))) + "\n"

    def _cell(self, path: str, name: str) -> str:
        """Return the cell of a group, or of a further column."""
        cells = self._standing.columns.get(name, {})
        named = cells.get(path, "")
        if name != ANSWER_GROUP or (named and not named.startswith(NEAR)):
            return named
        own = {cells.get(each, "") for each in self._standing.group_of(path)}
        own = {each for each in own if each and not each.startswith(NEAR)}
        return min(own, default=self._standing.groups.get(path, named))

    def _write(self) -> None:
        """Replace the table, unless it says all of this already; a new one waits for a label."""
        stamp = _stamp_of(self.file)
        is_current = stamp == self._stamp and self._written == len(self._events)
        if (stamp is None and not self._lines) or (stamp is not None and is_current):
            return
        header = ",".join(map(_quote, self.columns)) + "\n"
        content = "".join((header, *self._lines.values())).encode()
        digest = _digest(content)
        write_text(self._written_file, f"{self._digest}\n{digest}\n")
        with open_replacing(self.file) as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
            if self.file.exists() and _digest(self.file.read_bytes()) != self._digest:
                self._keep_beside()  # changed since it was read, whatever its size and time are
        self._digest, self._stamp = digest, _stamp_of(self.file)
        self._written = len(self._events)

    # -- what another program has written --

    def _check_copy(self, *, is_first: bool = False) -> None:
        """Keep a table beside that another program has changed; take in one without a journal."""
        stamp = _stamp_of(self.file)
        if stamp is None and is_first and self._lines:
            self._note(
                f"{self.file.name} was missing and is written again from its journal, "
                f"{self.journal.file.name}; remove both to start over"
            )
        if stamp in (None, self._stamp):
            return
        with storage_errors(self.file), contextlib.suppress(FileNotFoundError):
            digest = _digest(self.file.read_bytes())
            if not self._standing.history:
                rows = read_table(self.file)
                write_text(self._written_file, digest)
                self._take(rows)
                if len(self._lines) < rows_with_cells(self.file):
                    kept = self._kept_beside("original")
                    self._note(
                        f"{self.file.name} had rows without a path or a label, or several of one "
                        f"image, which it cannot keep: the original is {kept.name}"
                    )
                    return
            elif digest not in _text_of(self._written_file).split() or not self._has_all_rows():
                self._keep_beside()
                return
            self._digest, self._stamp, self._written = digest, stamp, None

    def _has_all_rows(self) -> bool:
        """Return whether the journal has every answer of the table that was written from it.

        That of an earlier Patchline has no further columns, so these are taken from the table.
        """
        rows = read_table(self.file)
        if not self._standing.columns and (cells := self._further_cells(rows)):
            self._append({"event": "answers", "answers": [], "columns": cells})
        return all(row[PATH] in self._standing.history for row in rows)

    def _keep_beside(self) -> None:
        kept = self._kept_beside("edited")
        self._note(
            f"{self.file.name} had changes that its journal lacks: it is kept as {kept.name}, and "
            f"{self.file.name} is written from the journal again; `patchline label FOLDER --import "
            f"{kept.name}` takes the changes in"
        )

    def _kept_beside(self, word: str) -> Path:
        """Rename the table, and return its new path."""
        name = f"{self.file.stem}.{word}-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}"
        others = len(list(self.folder.glob(f"{glob.escape(name)}*")))
        number = f"-{others + 1}" if others else ""
        return self.file.rename(self.file.with_name(f"{name}{number}{self.file.suffix}"))

    def _take(self, rows: list[Row]) -> Differences:
        """Write what rows say beyond the journal."""
        found = differences(rows, self._standing)
        cells = self._further_cells(rows)
        if not self._standing.tasks and any(looks_like_list(row[LABEL]) for row in rows):
            self._append({"event": "task", "task": MULTI_LABEL})
        if found.answers or cells:
            given = [each.to_json() for each in found.answers]
            self._append({"event": "answers", "answers": given, "columns": cells})
        if found.removed:
            self._append({"event": "removed", "paths": found.removed, "at": now()})
        return found

    def _further_cells(self, rows: list[Row]) -> dict[str, dict[str, str]]:
        """Return the cells of groups and further columns that differ from those of the answers."""
        cells: dict[str, dict[str, str]] = {}
        for row in rows:
            for name in row.keys() - ANSWER_COLUMNS:
                if name not in self.columns or row[name] != self._cell(row[PATH], name):
                    cells.setdefault(name, {})[row[PATH]] = row[name]
        return {name: cells[name] for name in rows[0] if name in cells} if rows else {}

    def _note(self, note: str) -> None:
        self.notes.append(note)
        logger.warning("%s.", note)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return ""


def table_labels(file: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels of each image in a table, by path, without writing anything.

    Raises:
        DataError: if it is another table, or cannot be read.
    """
    rows = read_table(file)
    return {row[PATH]: labels_in(row[LABEL]) for row in rows if row[LABEL].strip()}


def _row(answer: Answer, task: Task) -> tuple[str, ...]:
    probability = answer.suggestion_probability
    return (
        *(answer.path, label_cell(answer.labels, task), answer.labeled_by, answer.labeled_at),
        *(answer.suggestion, "" if probability is None else f"{probability:.4f}", answer.source),
    )


def _quote(cell: str) -> str:
    text = table_cell(cell)
    if not text or not _QUOTED.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _stamp_of(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


Row = dict[str, str]
_LONGEST_FIELD = 1 << 24
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""As `answer.now` writes it; a spreadsheet may have changed it to another form."""
_FEWEST_NUMBERS = 3
"""Of a date."""
_DAYS, _DAY_0 = re.compile(r"\d{5}[.,]\d+"), dt.datetime(1899, 12, 30)  # noqa: DTZ001 - without zone
"""A spreadsheet's number in place of a time, and the day that it counts from."""


class Differences(NamedTuple):
    """What the rows of a table say beyond a journal."""

    answers: list[Answer]
    """Labels that were changed or added."""
    removed: list[str]
    """Paths of labelled images whose cell `label` is empty."""
    older: list[str]
    """Paths of rows that are older than what the journal says of the image."""


def read_table(
    file: Path, remedy: str = "Choose another file with --table, or move this one away."
) -> list[Row]:
    """Return the rows of a table of answers that have a path, and of each image the last one.

    Args:
        file: the table.
        remedy: what to do if it is another table.

    Raises:
        DataError: if it is another table, or cannot be read.
    """
    lines = _lines_of(file, remedy)
    columns = [plain_cell(cell.strip()) for cell in lines[0]] if lines else []
    missing = [name for name in (PATH, LABEL) if name not in columns]
    if missing and lines:
        raise DataError(f"{file} is another table: it has no column '{missing[0]}'. {remedy}")
    rows = {}
    for number, cells in enumerate(lines[1:], 2):
        row = dict(zip(columns, map(plain_cell, cells), strict=False))
        row = {name: row.get(name, "") for name in (*ANSWER_COLUMNS, *columns)}
        try:
            labels_in(row[LABEL])
        except ValueError as error:
            raise DataError(
                f"Line {number} of {file} cannot be read: {error}. Repair it."
            ) from error
        if row[PATH]:
            rows[row[PATH]] = row
    return list(rows.values())


def rows_with_cells(file: Path) -> int:
    """Return how many rows of a table are not empty, also those of one image, or without a path.

    Raises:
        DataError: if it cannot be read.
    """
    return sum(any(map(str.strip, cells)) for cells in _lines_of(file)[1:])


def _lines_of(file: Path, remedy: str = "Choose another file.") -> list[list[str]]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
        csv.field_size_limit(_LONGEST_FIELD)
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except FileNotFoundError:
        raise DataError(f"There is no file {file}. Check the path.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table ({error}). {remedy}") from error


def differences(rows: Iterable[Row], standing: Standing) -> Differences:
    """Return what rows say beyond what stands after the events of a journal."""
    found = Differences([], [], [])
    for row in rows:
        path, given = row[PATH], row["labeled_at"]
        history, changed_at = standing.history.get(path, []), standing.changed_at.get(path, "")
        before = history[-1] if history else None
        labels = labels_in(row[LABEL]) if row[LABEL].strip() else None
        if labels == (before.labels if before and before.verdict == "label" else None):
            continue
        time = _time_of(given, history)
        earlier = [(each.labels, time and each.labeled_at) for each in history[:-1]]
        if "" < time < changed_at or (labels, time) in earlier:
            found.older.append(path)
        elif labels is None:
            found.removed.append(path)
        else:
            by, suggestion = row["labeled_by"], row["suggestion"]
            at = time if time > changed_at else now()
            source = row["source"] or (before.source if before else TABLE)
            probability = _number(row["suggestion_probability"])
            rest = (by, at, source, suggestion, probability)
            found.answers.append(Answer(path, "label", labels, *rest))
    return found


def _time_of(cell: str, history: Sequence[Answer]) -> str:
    """Return the time in a cell; empty if it tells none.

    A spreadsheet has its own form of times, often without seconds, or a number of days: such is the
    time of the last answer whose time has all numbers of the cell.
    """
    if _TIME.fullmatch(cell):
        return cell
    if _DAYS.fullmatch(cell):  # in five decimals, which are half a second apart from the time
        cell = f"{_DAY_0 + dt.timedelta(float(cell.replace(',', '.')), 0.5):%Y-%m-%d %H:%M:%S}"
    numbers = set(map(int, re.findall("[0-9]{1,9}", cell)))
    times = (each.labeled_at for each in history if len(numbers) >= _FEWEST_NUMBERS)
    return max((time for time in times if numbers <= _numbers_of(time)), default="")


def _numbers_of(time: str) -> set[int]:
    """Return the numbers with which a time may be written."""
    if not _TIME.fullmatch(time):
        return set()
    year, month, day, hour, minute, second = map(int, re.findall("[0-9]+", time))
    return {year, year % 100, month, day, hour, hour % 12 or 12, minute, second}


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
