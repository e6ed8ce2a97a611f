"""The aliases of a registered model: how users refer to versions, the lock, and the history.

An entry of the history is written before the alias moves, in the state `intended`, and marked
`done` afterwards. If a process dies in between, `settle` compares the entry with the alias and
either completes or removes it. A change made outside Patchline gets an entry when it is noticed.
Functions that write here require both locks, `machine_lock` and `claim_model`.

The MLflow UI hides tags whose names begin with `mlflow.`, so the entries are stored under such
names.

On one machine the lock is a file lock, which the operating system releases when a process dies.
MLflow has no compare-and-swap, so a shared server needs a claim too: a tag with a unique key on the
registered model. Each process writes its claim first and then looks for others, so two processes
cannot both see none. A process that sees another claim withdraws its own and retries after a random
pause. A claim that exists for more than a minute, by the observer's clock, belongs to a dead
process and is removed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import logging
import os
import random
import re
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field, ValidationError

from patchline.pipeline import local_services
from patchline.pipeline.errors import ConfigError, ModelReferenceError, TrackingError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.host.private_folder import private_folder
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace.tracking.tracking_store import (
    client,
    sqlite_file,
    unless_deleted,
    use_store,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

LONGEST_REASON = 500
"""Characters."""


def one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def check_reason(text: str | None) -> str | None:
    """Return a reason on one line; none if none was given.

    Raises:
        ConfigError: if it is too long.
    """
    if text is None:
        return None
    reason = one_line(text)
    if len(reason) > LONGEST_REASON:
        raise ConfigError(
            f"The reason has {len(reason)} characters, more than the maximum of {LONGEST_REASON}; "
            "shorten it."
        )
    return reason


CHAMPION, CHALLENGER = "champion", "challenger"
HISTORY_PREFIX = "mlflow.patchline.history."
Action = Literal["registered", "promoted", "forced", "rolled back", "changed outside Patchline"]
_LONGEST_ENTRY_REASON = 2000


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
    """The reason for the change, in one sentence."""
    at: str
    """The time of the change: ISO 8601, UTC."""
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
    return changes_in(store.get_registered_model(name).tags)


def changes_in(tags: Mapping[str, str]) -> list[AliasChange]:
    """Return the entries in the tags of a model, oldest first; unreadable ones are skipped."""
    return [entry for _, entry in _entries(tags)]


def _entries(tags: Mapping[str, str]) -> list[tuple[str, AliasChange]]:
    """Return the entries of a model with the tags that hold them, oldest first."""
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
    for key, entry in _entries(store.get_registered_model(name).tags):
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
        now, explained = alias_of(store, name, alias), find_explained_version(settled, alias)
        if now != explained:
            change = AliasChange(
                sequence=_next(settled),
                alias=alias,
                from_version=explained,
                to_version=now,
                action="changed outside Patchline",
                reason="noticed afterwards: the alias was changed outside Patchline",
                at=_now(),
            )
            _write(store, name, change)
            settled.append(change)
    return settled


def find_explained_version(entries: list[AliasChange], alias: str) -> str | None:
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
        name: the name of the registered model.
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
        **{**proposal.model_dump(), "reason": proposal.reason[:_LONGEST_ENTRY_REASON]},
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


def _write(store: MlflowClient, name: str, entry: AliasChange) -> None:
    key = f"{HISTORY_PREFIX}{entry.sequence:06d}"
    store.set_registered_model_tag(name, key, entry.model_dump_json())


def _next(entries: list[AliasChange]) -> int:
    return entries[-1].sequence + 1 if entries else 1


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


_REFERENCE = re.compile(
    r"^(?:models:/)?(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)"
    r"(?:@(?P<alias>[A-Za-z][A-Za-z0-9_-]*)|/(?P<version>\d+))?$"
)


class ParsedReference(NamedTuple):
    """What a reference such as `flowers@champion` says, before the registry is asked."""

    name: str
    alias: str | None
    """None if it names a version."""
    version: str | None


def parsed(reference: str) -> ParsedReference:
    """Return the parts of a reference; a name alone means the champion.

    Raises:
        ModelReferenceError: if the reference is malformed.
    """
    name, at, number = reference.partition("@")
    if at and number.isdigit():
        raise ModelReferenceError(f"Write a version as {name}/{number}, not {reference}.")
    match = _REFERENCE.match(reference)
    if match is None:
        raise ModelReferenceError(
            f"'{reference}' is not a model reference. Write NAME, NAME@ALIAS, NAME/VERSION or "
            "models:/NAME@ALIAS."
        )
    alias = None if match["version"] else match["alias"] or CHAMPION
    return ParsedReference(match["name"], alias, match["version"])


CLAIM_PREFIX = "patchline.claim."
_LEASE_SECONDS = 60.0
_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = (0.1, 1.0)


@contextmanager
def machine_lock(name: str, on_note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock of a registered model among the processes of this machine.

    Args:
        name: the name of the registered model.
        on_note: called with a sentence if another process holds the lock.

    Raises:
        StorageError: if the lock file cannot be written.
    """
    file = _lock_file(name)
    with storage_errors(file):
        make_folder(file.parent)
        file.touch(mode=0o600)
    waiting = f"waiting for another process that is changing '{name}'"
    with hold_lock(file, lambda: on_note(waiting)):
        yield


@contextmanager
def claim_model(name: str) -> Iterator[Callable[[], None]]:
    """Hold the claim of a registered model among the users of a shared server.

    Yields:
        A check to call right before a write: it raises `TrackingError` if the claim was lost.

    Raises:
        TrackingError: if other processes hold it for five minutes.
    """
    store = client()
    if sqlite_file() is not None:  # the file lock is enough
        yield lambda: None
        return
    key = _wait_for_claim(store, name)
    taken = time.monotonic()

    def still_held() -> None:
        late = time.monotonic() - taken > _LEASE_SECONDS / 2
        if late or key not in _claims(store, name):
            raise TrackingError(
                f"The lock on the registered model '{name}' was lost because the server is too "
                "slow. The aliases are as they were; run the command again."
            )

    try:
        yield still_held
    finally:
        _withdraw(store, name, key)


def _lock_file(name: str) -> Path:
    """Return the lock file of a model: beside the store, or where all stores of a user meet."""
    folder = _folder_of_store()
    if folder is not None:
        return folder / WORKSPACE / "locks" / f"{name}.lock"
    digest = hashlib.sha256(f"{use_store()}\n{name}".encode()).hexdigest()[:16]
    with storage_errors(Path(tempfile.gettempdir())):
        return private_folder() / f"{digest}.lock"


def _folder_of_store() -> Path | None:
    """Return the folder of the SQLite file, directly or behind a server on this machine."""
    database = sqlite_file()
    if database is not None:
        return database.parent
    services = local_services.find_running()
    here = services is not None and "mlflow" in services.own and services.mlflow_url == use_store()
    return services.folder if services and here else None


def _wait_for_claim(store: MlflowClient, name: str) -> str:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    first_seen: dict[str, float] = {}
    while True:
        key = CLAIM_PREFIX + uuid.uuid4().hex
        value = f"{socket.gethostname()} {os.getpid()}"
        store.set_registered_model_tag(name, key, value)
        others = _claims(store, name) - {key}
        if not others:
            return key
        _withdraw(store, name, key)
        now = time.monotonic()
        first_seen = {other: first_seen.get(other, now) for other in others}
        for other, seen in first_seen.items():
            if now - seen > _LEASE_SECONDS:
                logger.warning("the lock %s on '%s' was left by a dead process", other, name)
                _withdraw(store, name, other)
        if now > deadline:
            raise TrackingError(
                f"Other processes have held the lock on the registered model '{name}' for "
                f"{_PATIENCE_SECONDS:.0f} s. Try again later."
            )
        time.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 - a pause, not a secret


def _claims(store: MlflowClient, name: str) -> set[str]:
    tags = store.get_registered_model(name).tags
    return {key for key in tags if key.startswith(CLAIM_PREFIX)}


def _withdraw(store: MlflowClient, name: str, key: str) -> None:
    with unless_deleted():  # by somebody else
        store.delete_registered_model_tag(name, key)
