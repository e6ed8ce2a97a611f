"""The table of answers, `labels.csv`, and the journal that it is written from.

An answer is appended to the journal, `.patchline-labels.jsonl`, which is synced; then the table is
replaced as a whole, so that it has one row for each image whose label stands. Several processes may
append: a lock on a file beside them keeps them in order, and each reads what the others wrote. What
a person changes in the table counts, too: it becomes an event of the journal.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.files.access import check_no_link, check_own_folder
from patchline.pipeline.files.atomic_files import replacing, write_text
from patchline.pipeline.files.file_locks import locked, try_lock
from patchline.pipeline.files.table_cells import table_cell
from patchline.pipeline.labelling.answer import (
    Answer,
    client_of,
    label_cell,
    labels_in,
    looks_like_list,
    new_batch,
    now,
)
from patchline.pipeline.labelling.edited_table import Row, merged, paths_of, read_table
from patchline.pipeline.labelling.journal import Journal
from patchline.pipeline.labelling.standing import Event, Standing, name_of_group
from patchline.pipeline.labels.answer_columns import (
    ANSWER_COLUMNS,
    ANSWER_GROUP,
    LABEL,
    NEAR,
    PATH,
)
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task

logger = logging.getLogger(__name__)
_NAMED = 3
TABLE_NAME = "labels.csv"
_WRITTEN_COLUMNS = (*ANSWER_COLUMNS, ANSWER_GROUP)
_QUOTED = re.compile(r'[",;|\t\r\n]|^\s|\s$|^$')
"""What a cell has quotes for, so that no reader takes a part of it for a delimiter."""


class AnswersTable:
    """The answers of one table; its methods may be called by several threads.

    Args:
        file: the table, which need not exist.
        task: of a new table.

    Attributes:
        notes: what was read in another way than it is written, or saved by another program; those
            after the table was opened are logged, too.

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
        """The digest of the table as it was written last: a file with another one was edited."""
        self._is_open = False
        self._mutex = threading.RLock()
        self._events: list[Event] = []
        self._standing = Standing()
        self._lines: dict[str, str] = {}
        self._others: dict[str, tuple[str, ...]] = {}
        self._other_columns: tuple[str, ...] = ()
        self._groups: dict[str, str] = {}
        """The groups that the data, or a person, has named in the table."""
        self._stamp: tuple[int, ...] | None = None
        self._written: int | None = None
        """The number of events that the table holds."""
        with self._current():
            if task is not None and not self._standing.tasks:
                self._append({"event": "task", "task": task})
            self._write()
        for number in self.journal.cut:
            self.notes.append(
                f"line {number} of {self.journal.file.name} was cut off when a process was killed, "
                "and counts for nothing"
            )
        self._is_open = True
        self._events_before = len(self._events)

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
            url: of the page.

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
        """Return what a page answered last and has not taken back; empty if there is nothing.

        A page that has answered nothing, such as one that was opened after a restart, gets what its
        person answered before the table was opened: others may have the same name meanwhile.

        Args:
            client: the page.
            person: who uses it; empty if that is not known.
        """
        with self._mutex:
            own = self._last_answers(self._events, lambda each: client_of(each.batch) == client)
            before = self._events[: self._events_before]
            return own or self._last_answers(
                before, lambda each: each.labeled_by == person and bool(person)
            )

    def _last_answers(
        self, events: Sequence[Event], is_own: Callable[[Answer], bool]
    ) -> list[Answer]:
        """Return the last own answers of some events that were given at once and still count."""
        for event in reversed(events):
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
        """Read what other processes, or a person with an editor, have written since."""
        with self._current() as has_changed:
            if has_changed:
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
            answers: of the data.
            columns: groups and further columns, with a cell for each answer; only a new table gets
                them.
        """
        with self._current():
            new = [each for each in answers if each.path not in self._standing.history]
            if columns and not self._lines and not self._other_columns:
                others = {name: each for name, each in columns.items() if name != ANSWER_GROUP}
                paths = [each.path for each in answers]
                self._other_columns = tuple(others)
                self._others = dict(zip(paths, zip(*others.values(), strict=True), strict=False))
                self._groups = dict(zip(paths, columns.get(ANSWER_GROUP, ()), strict=False))
            if new:
                self._append({"event": "answers", "answers": [each.to_json() for each in new]})
                self._write()

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
            findings: their digest.
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
    def _current(self) -> Iterator[bool]:
        """Hold the table, up to date; yield whether others have changed it."""
        with self._mutex, locked(self._lock_file):
            before = len(self._events)
            new = self.journal.new_events()
            for event in new:
                self._apply(event)
            edited = self._take_edits(first=before == 0)
            yield bool(new) or edited

    def _append(self, event: Event) -> None:
        self.journal.append(event)
        for each in self.journal.new_events():
            self._apply(each)

    def _apply(self, event: Event) -> None:
        self._events.append(event)
        self._standing.apply(event)
        if event["event"] == "task":
            self._lines.clear()
            changed: Iterable[str] = self._standing.history
        else:
            changed = paths_of(event)
        if event["event"] != "groups":
            for path in changed:
                self._lines.pop(path, None)
        for path in dict.fromkeys(p for each in changed for p in self._standing.group_of(each)):
            history = self._standing.history.get(path)
            if history and history[-1].verdict == "label":
                self._lines[path] = self._line(history[-1])

    def _line(self, answer: Answer) -> str:
        cells = (*_row(answer, self.task), self._group_cell(answer.path))
        others = self._others.get(answer.path, ("",) * len(self._other_columns))
        return ",".join(map(_quoted, (*cells, *others))) + "\n"

    def _group_cell(self, path: str) -> str:
        """Return the name of an image's group: that of a person, else that of the journal."""
        named = self._groups.get(path, "")
        if named and not named.startswith(NEAR):
            return named
        members = self._standing.group_of(path)
        own = {self._groups.get(each, "") for each in members}
        own = {name for name in own if name and not name.startswith(NEAR)}
        return min(own, default=self._standing.groups.get(path, named))

    def _write(self) -> None:
        """Replace the table, unless it says all of this already; a new one waits for a label."""
        stamp = _stamp_of(self.file)
        is_current = stamp == self._stamp and self._written == len(self._events)
        if (stamp is None and not self._lines) or (stamp is not None and is_current):
            return
        header = ",".join(map(_quoted, (*_WRITTEN_COLUMNS, *self._other_columns))) + "\n"
        content = "".join((header, *self._lines.values())).encode()
        with replacing(self.file) as temporary, temporary.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        self._stamp = _stamp_of(self.file)
        self._written = len(self._events)
        write_text(self._written_file, hashlib.sha256(content).hexdigest())

    # -- what a person has changed in the table --

    def _take_edits(self, *, first: bool) -> bool:
        """Take over what a person has changed in the table; return whether it says other things."""
        stamp = _stamp_of(self.file)
        if stamp is None:
            if first and self._lines:
                self._note(
                    f"{self.file.name} was missing and is written again from its journal, "
                    f"{self.journal.file.name}; remove both to start over"
                )
            return False
        if stamp == self._stamp:
            return False
        table = read_table(self.file)
        others = tuple(name for name in table.columns if name not in _WRITTEN_COLUMNS)
        if others != self._other_columns:
            self._others.clear()
        self._other_columns = others
        for row in table.rows:
            self._others[row[PATH]] = tuple(row[name] for name in others)
            self._groups[row[PATH]] = row.get(ANSWER_GROUP, "")
        self._relabel()
        self._stamp = stamp
        is_own = _text_of(self._written_file) == table.sha256
        lost = [row[PATH] for row in table.rows if row[PATH] not in self._standing.history]
        if is_own and not lost:
            return False
        if is_own:
            self._note(
                f"{self.journal.file.name} lacks answers that {self.file.name} has: it is damaged, "
                "or not the one that the table was written from"
            )
        return self._take(table.rows)

    def _relabel(self) -> None:
        for path in list(self._lines):
            self._lines[path] = self._line(self._standing.history[path][-1])

    def _take(self, rows: list[Row]) -> bool:
        found = merged(rows, self._events, self._standing)
        if not self._standing.tasks and any(looks_like_list(row[LABEL]) for row in rows):
            self._append({"event": "task", "task": MULTI_LABEL})
        if found.answers:
            given = [each.to_json() for each in found.answers]
            self._append({"event": "answers", "answers": given})
        if found.removed:
            self._append({"event": "removed", "paths": found.removed, "at": now()})
        changed = [*(each.path for each in found.answers), *found.removed]
        if changed:
            rows_are = "row was" if len(changed) == 1 else "rows were"
            self._note(
                f"{len(changed):,} {rows_are} changed in {self.file.name} by another program, "
                f"which counts: {_some(changed)}"
            )
        if found.newer:
            self._written = None
            stays = "answer, which stays" if found.newer == 1 else "answers, which stay"
            also = f" (also for {_some(found.outdated)})" if found.outdated else ""
            self._note(
                f"{self.file.name} was saved as it was before the last {found.newer:,} {stays}"
                f"{also}; open it again before you change more"
            )
        return bool(changed or found.newer)

    def _note(self, note: str) -> None:
        self.notes.append(note)
        if self._is_open:
            logger.warning("%s.", note)


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more


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
    return {row[PATH]: labels_in(row[LABEL]) for row in read_table(file).rows}


def _row(answer: Answer, task: Task) -> tuple[str, ...]:
    probability = answer.suggestion_probability
    return (
        *(answer.path, label_cell(answer.labels, task), answer.labeled_by, answer.labeled_at),
        *(answer.suggestion, "" if probability is None else f"{probability:.4f}", answer.source),
    )


def _quoted(cell: str) -> str:
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
