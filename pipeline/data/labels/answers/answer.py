"""An answer to the question what an image shows, and the name of a class that a person types."""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from patchline.pipeline.data.labels.class_names import HIDDEN, alike, normalize_name
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, Task, encode_labels
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.terminal_words import visible

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
    """The probability of the class; of several labels, the smallest one; without a label, the
    probability that there is none."""

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
    """The labels that were suggested, as the cell of a label."""
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
    return encode_labels(labels) if task == MULTI_LABEL else "".join(labels[:1])


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


LONGEST = 100
"""Characters."""
MOST_CLASSES = 1000


def check_class(name: str, classes: Collection[str]) -> str:
    """Return the name of a class as it is written; that of an existing one if it is the same.

    Raises:
        ConfigError: if it is empty, too long, cannot be seen, or looks like another class.
    """
    plain = normalize_name(" ".join(name.split()))
    if not plain:
        raise ConfigError("The name of a class is empty. Type a name.")
    if len(plain) > LONGEST:
        raise ConfigError(
            f"The name of a class has {len(plain)} characters, but at most {LONGEST} are allowed. "
            "Type a shorter name."
        )
    if any(unicodedata.category(each) in HIDDEN for each in plain):
        raise ConfigError(
            f"The class '{visible(plain)}' has invisible characters. Type it without them."
        )
    if looks_like_list(plain):
        raise ConfigError(
            f"The class '{plain}' would be read as a list of labels. Type it without brackets."
        )
    if plain in classes:
        return plain
    like = next((each for each in classes if alike(each) == alike(plain)), None)
    if like is not None:
        raise ConfigError(
            f"The class '{plain}' looks like '{like}'. Use that one, or another name."
        )
    if len(classes) >= MOST_CLASSES:
        raise ConfigError(f"There are {MOST_CLASSES:,} classes already, which is the maximum.")
    return plain
