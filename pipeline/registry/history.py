"""The history of a registered model's aliases: one entry for each change, in the registry's tags.

An entry is written before the alias moves, in the state `intended`, and marked `done` afterwards.
If a process dies in between, `settle` compares the entry with the alias and either completes or
removes it. A change made outside Patchline gets an entry when it is noticed. Functions that write
here require the lock of `promotion.changing`.

The MLflow UI hides tags whose names begin with `mlflow.`, so the entries are stored under such
names.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from patchline.pipeline.frozen_model import FrozenModel

if TYPE_CHECKING:
    from mlflow import MlflowClient


CHAMPION, CHALLENGER = "champion", "challenger"
HISTORY_PREFIX = "mlflow.patchline.history."
Action = Literal["registered", "promoted", "forced", "rolled back", "changed outside Patchline"]
_LONGEST_REASON = 2000


class AliasChange(FrozenModel):
    """One change of an alias."""

    sequence: int
    """Counts the changes of a model's aliases from 1."""
    alias: str
    from_version: str | None
    """The version that the alias pointed to before; none if it did not exist."""
    to_version: str | None
    """The version that it points to now; none if it was removed."""
    action: Action
    reason: str
    """In one sentence."""
    at: str
    """ISO 8601, UTC."""
    gates: dict[str, bool | None] = Field(default_factory=dict)
    """The gates that were evaluated, and whether each passed; None if it had nothing to check."""
    artifact: str | None = None
    """URI of the full decision."""
    state: Literal["intended", "done"] = "done"


class Proposal(FrozenModel):
    """A change of an alias that was decided but not made yet."""

    alias: str
    to_version: str
    action: Action
    reason: str
    gates: dict[str, bool | None] = Field(default_factory=dict)
    artifact: str | None = None


def read_changes(store: MlflowClient, name: str) -> list[AliasChange]:
    """Return the entries of a model, oldest first; unreadable ones are skipped."""
    return [entry for _, entry in _entries(store, name)]


def _entries(store: MlflowClient, name: str) -> list[tuple[str, AliasChange]]:
    """Return the entries of a model with the tags that hold them, oldest first."""
    tags = store.get_registered_model(name).tags
    entries = []
    for key in sorted(tags):
        if key.startswith(HISTORY_PREFIX):
            with contextlib.suppress(ValidationError):  # by a newer Patchline, or by hand
                entries.append((key, AliasChange.model_validate_json(tags[key])))
    return sorted(entries, key=lambda entry: entry[1].sequence)


def alias_of(store: MlflowClient, name: str, alias: str) -> str | None:
    """Return the version that an alias points to."""
    version = store.get_registered_model(name).aliases.get(alias)
    return None if version is None else str(version)


def had_champion(store: MlflowClient, name: str) -> bool:
    """Return whether a version of the model is or was champion, as far as the history tells."""
    return any(
        entry.alias == CHAMPION and entry.to_version is not None and entry.state == "done"
        for entry in read_changes(store, name)
    )


def settle(store: MlflowClient, name: str) -> list[AliasChange]:
    """Make the history agree with the aliases, and return it.

    An intended change that took place is marked done, and one that did not is removed. A change
    without an entry gets one.
    """
    settled: list[AliasChange] = []
    for key, entry in _entries(store, name):
        if entry.state == "intended":
            if alias_of(store, name, entry.alias) != entry.to_version:
                store.delete_registered_model_tag(name, key)
                continue
            done = entry.model_copy(update={"state": "done"})
            store.set_registered_model_tag(name, key, done.model_dump_json())
            settled.append(done)
        else:
            settled.append(entry)
    for alias in (CHALLENGER, CHAMPION):
        now, explained = alias_of(store, name, alias), explained_version(settled, alias)
        if now != explained:
            settled.append(_noticed(store, name, settled, alias, explained, now))
    return settled


def explained_version(entries: list[AliasChange], alias: str) -> str | None:
    """Return the version that an alias points to according to its history."""
    own = [entry for entry in entries if entry.alias == alias and entry.state == "done"]
    return own[-1].to_version if own else None


def change_alias(
    store: MlflowClient,
    name: str,
    proposal: Proposal,
    still_held: Callable[[], None],
) -> AliasChange:
    """Move an alias and write its entry; call `settle` right before.

    Args:
        store: the registry.
        name: of the registered model.
        proposal: what to change, and why.
        still_held: raises an error if the lock was lost.

    Returns:
        The entry.
    """
    entries = read_changes(store, name)
    entry = AliasChange(
        sequence=_next(entries),
        from_version=alias_of(store, name, proposal.alias),
        at=_now(),
        state="intended",
        **{**proposal.model_dump(), "reason": proposal.reason[:_LONGEST_REASON]},
    )
    still_held()
    _write(store, name, entry)
    still_held()
    store.set_registered_model_alias(name, proposal.alias, proposal.to_version)
    done = entry.model_copy(update={"state": "done"})
    _write(store, name, done)
    return done


def earlier_champions(entries: list[AliasChange]) -> list[str]:
    """Return the champions before the current one, latest first.

    Champions form a stack: a promotion pushes one, a rollback pops it.
    """
    stack: list[str] = []
    for entry in entries:
        if entry.alias != CHAMPION or entry.to_version is None:
            continue
        if entry.action == "rolled back" and entry.to_version in stack:
            while stack[-1] != entry.to_version:
                stack.pop()
        else:
            stack.append(entry.to_version)
    return stack[-2::-1]


def _noticed(
    store: MlflowClient,
    name: str,
    entries: list[AliasChange],
    alias: str,
    explained: str | None,
    now: str | None,
) -> AliasChange:
    entry = AliasChange(
        sequence=_next(entries),
        alias=alias,
        from_version=explained,
        to_version=now,
        action="changed outside Patchline",
        reason="noticed afterwards: the alias was changed outside Patchline",
        at=_now(),
    )
    _write(store, name, entry)
    return entry


def _write(store: MlflowClient, name: str, entry: AliasChange) -> None:
    key = f"{HISTORY_PREFIX}{entry.sequence:06d}"
    store.set_registered_model_tag(name, key, entry.model_dump_json())


def _next(entries: list[AliasChange]) -> int:
    return entries[-1].sequence + 1 if entries else 1


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
