"""The state that the events of a journal lead to: the answers that stand, classes, and rounds.

A round is the work on one list of findings. What was answered before it stands in the table, but
the findings doubt it, so it is no answer to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from patchline.pipeline.files.json_lines import DamagedLineError
from patchline.pipeline.labelling.answer import Answer
from patchline.pipeline.labels.label_sets import Task

Event = dict[str, Any]


class _Answers(BaseModel):
    answers: list[Answer]


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


_KINDS: dict[str, type[BaseModel]] = {
    "answers": _Answers,
    "undo": _Undo,
    "removed": _Removed,
    "classes": _Classes,
    "task": _OfTask,
    "findings": _Findings,
}


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

    def apply(self, event: Event) -> None:
        """Change the state by an event; one of a later Patchline changes nothing."""
        kind = event["event"]
        if kind == "answers":
            for content in event["answers"]:
                answer = Answer.of_json(content)
                self.history.setdefault(answer.path, []).append(answer)
                self.classes.update(dict.fromkeys(answer.labels))
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
        event: read from a journal.
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
