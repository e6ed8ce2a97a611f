"""The journal of a table of answers, one line of JSON for each event, and the state they lead to.

A round is the work on one list of findings. What was answered before it stands in the table, but
the findings doubt it, so it is no answer to them.

A line is on the disk before anybody is told that an answer was taken. What a crash has left of a
last line is no event; it stays in the file, and the next event begins a line of its own. Any other
line that is no event is damage, which is not passed over: an answer may have been in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from patchline.pipeline.data.labels.answer_columns import NEAR
from patchline.pipeline.data.labels.answers.answer import Answer
from patchline.pipeline.data.labels.label_sets import Task
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.json_lines import AppendLog, DamagedLineError

Event = dict[str, Any]


class _StandingAnswers(BaseModel):
    answers: list[Answer]
    columns: dict[str, dict[str, str]] = {}


class _Undo(BaseModel):
    batch: str
    paths: list[str]


class _Removed(BaseModel):
    paths: list[str]


class _Classes(BaseModel):
    names: list[str]


class _OfTask(BaseModel):
    task: Task


class _Findings(BaseModel):
    digest: str


class _Groups(BaseModel):
    groups: dict[str, list[str]]


_KINDS: dict[str, type[BaseModel]] = {
    "answers": _StandingAnswers,
    "undo": _Undo,
    "removed": _Removed,
    "classes": _Classes,
    "task": _OfTask,
    "findings": _Findings,
    "groups": _Groups,
}

_NAME_DIGITS = 12


def name_of_group(batch: str) -> str:
    """Return the name of the group of the images that were answered at once."""
    return f"{NEAR}{batch.rpartition('.')[2][:_NAME_DIGITS]}"


@dataclass
class Standing:
    """What stands after some events."""

    history: dict[str, list[Answer]] = field(default_factory=dict)
    """The answers to each image that were not taken back, the last of which stands."""
    classes: dict[str, None] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    """The last one counts."""
    findings: str = ""
    """The digest of the findings of the last round; empty if there was none."""
    earlier: dict[str, int] = field(default_factory=dict)
    """How many answers of an image's history are older than the last round."""
    groups: dict[str, str] = field(default_factory=dict)
    """The name of the group of each image that has near duplicates."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """The images of each group, the oldest group first."""
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """The cells of the groups and of further columns that the data or a person has, by path."""
    changed_at: dict[str, str] = field(default_factory=dict)
    """When each image was answered, or an answer to it was taken back, the last time."""

    def apply(self, event: Event) -> None:
        """Change the state by an event; one of a later Patchline changes nothing."""
        kind = event["event"]
        self._take_groups(event.get("groups", {}))
        self.changed_at.update(dict.fromkeys(event.get("paths", ()), event.get("at", "")))
        if kind == "answers":
            self._take(map(Answer.of_json, event["answers"]))
            for name, cells in event.get("columns", {}).items():
                self.columns.setdefault(name, {}).update(cells)
        elif kind == "undo":
            for path in event["paths"]:
                self._take_back(path, event["batch"])
        elif kind == "removed":
            for path in event["paths"]:
                self.history.pop(path, None)
                self.earlier.pop(path, None)
        elif kind == "classes":
            self.classes.update(dict.fromkeys(event["names"]))
        elif kind == "task":
            self.tasks.append(event["task"])
        elif kind == "findings":
            self.findings = event["digest"]
            self.earlier = {path: len(history) for path, history in self.history.items()}

    def _take(self, answers: Iterable[Answer]) -> None:
        batches: dict[str, list[str]] = {}
        for answer in answers:
            self.history.setdefault(answer.path, []).append(answer)
            self.changed_at[answer.path] = answer.labeled_at
            self.classes.update(dict.fromkeys(answer.labels))
            batches.setdefault(answer.batch, []).append(answer.path)
        several = {batch: paths for batch, paths in batches.items() if batch and len(paths) > 1}
        self._take_groups({name_of_group(batch): paths for batch, paths in several.items()})

    def _take_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        for name, paths in groups.items():
            self._group(name, paths)

    def are_grouped(self, paths: Sequence[str]) -> bool:
        """Return whether images are known to belong to one group."""
        return len({self.groups.get(path, path) for path in paths}) == 1

    def group_of(self, path: str) -> list[str]:
        """Return the images of the group of an image; itself alone if it is in none."""
        return self.members.get(self.groups.get(path, ""), [path])

    def _group(self, name: str, paths: Sequence[str]) -> None:
        """Put images into one group, with the groups that they are in; the oldest gives the name.

        A group stays one, also when an answer is taken back: its images still look alike.
        """
        there = {self.groups[path] for path in paths if path in self.groups}
        if there:
            name = there.pop() if len(there) == 1 else min(there, key=list(self.members).index)
        joined = [*self.members.get(name, ()), *(p for path in paths for p in self.group_of(path))]
        for other in there - {name}:
            del self.members[other]
        self.members[name] = list(dict.fromkeys(joined))
        self.groups.update(dict.fromkeys(joined, name))

    def answer(self, path: str) -> Answer | None:
        """Return the answer that stands for an image; None without one."""
        history = self.history.get(path)
        return history[-1] if history else None

    def has(self, answer: Answer) -> bool:
        """Return whether an answer of a batch was not taken back."""
        return any(each.batch == answer.batch for each in self.history.get(answer.path, ()))

    def is_of_round(self, path: str) -> bool:
        """Return whether the answer that stands for an image was given in the last round."""
        return len(self.history.get(path, ())) > self.earlier.get(path, 0)

    def _take_back(self, path: str, batch: str) -> None:
        history = self.history.get(path, [])
        older = history[: self.earlier.get(path, 0)]
        self.earlier[path] = sum(each.batch != batch for each in older)
        self.history[path] = [each for each in history if each.batch != batch]


def check(event: Event, line: int) -> None:
    """Check the fields of an event; of a kind that only a later Patchline knows, nothing.

    Args:
        event: an event that was read from a journal.
        line: its number there.

    Raises:
        DamagedLineError: if a field is missing, unknown or of another type.
    """
    kind = event.get("event")
    if not isinstance(kind, str):
        raise DamagedLineError(f"line {line} is not an event")
    if kind in _KINDS:
        try:
            _KINDS[kind].model_validate(event)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise DamagedLineError(
                f"line {line} is not an event of this version of Patchline ({field}: "
                f"{first['msg'].lower()})"
            ) from error


class Journal:
    """The events in a file.

    Args:
        file: the file of the journal, which need not exist.

    Attributes:
        cut: numbers of lines that a killed process has left unfinished.
    """

    def __init__(self, file: Path) -> None:
        self.file, self._log = file, AppendLog(file)
        self.cut: list[int] = []

    def new_events(self) -> list[Event]:
        """Return the events since the last call, those of other processes included.

        Raises:
            DataError: if the file cannot be read, or a line is damaged.
        """
        try:
            lines = self._log.new_objects(check)
        except OSError as error:
            raise self._damaged(f"it cannot be read ({error.strerror})") from error
        except DamagedLineError as error:
            raise self._damaged(str(error)) from error
        self.cut += [number for number, event in lines if event is None]
        return [event for _, event in lines if event is not None]

    def _damaged(self, what: str) -> DataError:
        return DataError(
            f"The journal of answers {self.file} is damaged: {what}. Restore it from a backup, or "
            "move it away: then the labels in the table beside it count."
        )

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event, and wait until it is on the disk.

        Raises:
            StorageError: if the disk is full or read-only, or the file is a link; nothing counts
                then.
        """
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        self._log.append_lines(f"{line}\n".encode(), synced=True)
