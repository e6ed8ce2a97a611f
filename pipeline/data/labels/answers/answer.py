"""An answer to the question what an image shows."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, Task, encoded

Verdict = Literal["label", "unsure", "skip"]
"""`label` has labels; `unsure` sets an image aside; `skip` puts it behind all others."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
REPRESENTATIVE: Final = "representative"
UNCERTAIN: Final = "uncertain"
"""Why an image was asked about: typical of many others, or hard to predict."""
SOMEBODY: Final = "somebody"
"""Anybody on another machine who types no name."""
FEEDBACK: Final = "feedback"
"""Where else a label is from: a client of a served model."""
_LIST = re.compile(r"\s*\[.*\]\s*", re.DOTALL)


class Suggestion(NamedTuple):
    """What a model predicts for an image."""

    labels: tuple[str, ...]
    probability: float
    """Of its class; of several labels, the smallest; of none, that no label is there."""

    def shown(self, task: Task) -> str:
        """Return the labels as the table writes them."""
        return label_cell(self.labels, task)


class Answer(NamedTuple):
    """What a person, or what the data itself, says of one image."""

    path: str
    """Relative to the folder of the table, with forward slashes."""
    verdict: Verdict
    labels: tuple[str, ...] = ()
    """One class, or any number of labels, sorted."""
    labeled_by: str = ""
    labeled_at: str = ""
    """UTC, such as 2026-11-27T08:30:00Z."""
    source: str = ""
    """Why the image was asked about."""
    suggestion: str = ""
    """As the cell of a label."""
    suggestion_probability: float | None = None
    batch: str = ""
    """Equal for images that were answered at once; it begins with the page (see `new_batch`)."""

    def to_json(self) -> dict[str, Any]:
        """Return it for a journal, without what is empty."""
        return {name: value for name, value in self._asdict().items() if value or name == "labels"}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> Answer:
        """Return an answer of a journal.

        Raises:
            TypeError: if it has other keys.
        """
        return cls(**{**content, "labels": tuple(content.get("labels", ()))})


def now() -> str:
    """Return the time of an answer."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_batch(client: str = "") -> str:
    """Return what marks the answers that are given at once on a page."""
    return f"{client}.{uuid.uuid4().hex[:16]}"


def client_of(batch: str) -> str:
    """Return the page on which answers were given; empty if that is not known."""
    return batch.rpartition(".")[0]


def label_cell(labels: Sequence[str], task: Task) -> str:
    """Return labels as the table writes them: the class, or a JSON list."""
    return encoded(labels) if task == MULTI_LABEL else "".join(labels[:1])


def labels_in(cell: str) -> tuple[str, ...]:
    """Return the labels in a cell of the table; none for an empty one.

    Raises:
        ValueError: if it looks like a list and is none.
    """
    if not _LIST.fullmatch(cell):
        return (cell.strip(),) if cell.strip() else ()
    labels = json.loads(cell)
    if not all(isinstance(each, str) for each in labels):
        raise ValueError(f"{cell[:80]} is not a list of names")
    return tuple(sorted(set(labels)))


def looks_like_list(text: str) -> bool:
    """Return whether a text would be read as several labels."""
    return bool(_LIST.fullmatch(text))
