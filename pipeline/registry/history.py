"""The history of a registered model's aliases: one entry for every change, in the registry's tags.

An entry is written before the alias moves, in the state `intended`, and marked `done` after it. So
a process that dies in between leaves an entry that tells what it wanted; `settle` compares it with
the alias and either completes it or takes it away. A change that was made outside Patchline gets an
entry too, when it is noticed. Only the holder of `exclusive_right` calls what writes here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from pipeline.section import Section

if TYPE_CHECKING:
    from mlflow import MlflowClient


CHAMPION, CHALLENGER = "champion", "challenger"
HISTORY_PREFIX = "patchline.history."
Action = Literal["registered", "promoted", "forced", "rolled back", "changed outside Patchline"]
_LONGEST_REASON = 2000


class AliasChange(Section):
    """One change of an alias."""

    sequence: int
    """Counts the changes of a model from 1."""
    alias: str
    from_version: str | None
    """What the alias pointed at before; none if it did not exist."""
    to_version: str | None
    """What it points at now; none if it was removed."""
    action: Action
    reason: str
    """In one sentence."""
    at: str
    """ISO 8601, UTC."""
    gates: dict[str, bool] = Field(default_factory=dict)
    """Which gates were asked, and which of them passed."""
    artifact: str | None = None
    """Where the whole decision is."""
    state: Literal["intended", "done"] = "done"


class Proposal(Section):
    """A change of an alias that somebody has decided on."""

    alias: str
    to_version: str
    action: Action
    reason: str
    gates: dict[str, bool] = Field(default_factory=dict)
    artifact: str | None = None


def read(store: MlflowClient, name: str) -> list[AliasChange]:
    """Return the entries of a model, oldest first; what cannot be read is left out."""
    tags = store.get_registered_model(name).tags
    entries = []
    for key in sorted(key for key in tags if key.startswith(HISTORY_PREFIX)):
        try:
            entries.append(AliasChange.model_validate_json(tags[key]))
        except ValidationError:
            continue  # written by a newer Patchline, or by hand
    return sorted(entries, key=lambda entry: entry.sequence)


def alias_of(store: MlflowClient, name: str, alias: str) -> str | None:
    """Return the version that an alias points at."""
    version = store.get_registered_model(name).aliases.get(alias)
    return None if version is None else str(version)


def settle(store: MlflowClient, name: str) -> list[AliasChange]:
    """Make the history agree with the aliases, and return it.

    An intended change that took place is marked done, one that did not is removed, and what
    somebody changed without an entry gets one.
    """
    settled: list[AliasChange] = []
    for entry in read(store, name):
        if entry.state == "intended":
            if alias_of(store, name, entry.alias) != entry.to_version:
                store.delete_registered_model_tag(name, _key(entry.sequence))
                continue
            done = entry.model_copy(update={"state": "done"})
            _write(store, name, done)
            settled.append(done)
        else:
            settled.append(entry)
    for alias in (CHALLENGER, CHAMPION):
        now, explained = alias_of(store, name, alias), explained_version(settled, alias)
        if now != explained:
            settled.append(_noticed(store, name, settled, alias, explained, now))
    return settled


def explained_version(entries: list[AliasChange], alias: str) -> str | None:
    """Return the version that an alias should point at by its history."""
    own = [entry for entry in entries if entry.alias == alias and entry.state == "done"]
    return own[-1].to_version if own else None


def change_alias(
    store: MlflowClient,
    name: str,
    proposal: Proposal,
    still_held: Callable[[], None],
) -> AliasChange:
    """Move an alias and write its entry; the history must have been settled right before.

    Args:
        store: the registry.
        name: of the registered model.
        proposal: what to change, and why.
        still_held: raises if the exclusive right was lost.

    Returns:
        The entry.
    """
    entries = read(store, name)
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
    """Return the champions before the present one, latest first.

    A promotion puts a champion on top; a rollback takes it off and shows the one below.
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
        reason="noticed afterwards: the alias had been changed without a decision of Patchline",
        at=_now(),
    )
    _write(store, name, entry)
    return entry


def _write(store: MlflowClient, name: str, entry: AliasChange) -> None:
    store.set_registered_model_tag(name, _key(entry.sequence), entry.model_dump_json())


def _key(sequence: int) -> str:
    return f"{HISTORY_PREFIX}{sequence:06d}"


def _next(entries: list[AliasChange]) -> int:
    return entries[-1].sequence + 1 if entries else 1


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
