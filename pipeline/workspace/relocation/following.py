"""A workspace follows its own folder: after `mv`, after `cp -r`, on another machine.

MLflow stores the places of artifacts as absolute paths, and so do records of earlier results and
schedules. The first command in a moved or copied workspace rewrites those that lead into the old
folder, under a lock. The workspace is

- moved, if the old folder no longer holds it: it keeps its id;
- a copy, if the old folder still holds it: the copy gets an id of its own;
- the same under another name (a bind mount), if both are one folder: nothing is rewritten.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from patchline.pipeline import local_services
from patchline.pipeline.errors import OrchestrationError, StorageError
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workspace.files import workspace_identity
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.file_locks import hold_lock, is_held
from patchline.pipeline.workspace.files.paths import artifact_path, sqlite_path
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, is_same_folder
from patchline.pipeline.workspace.files.workspace_identity import Identity
from patchline.pipeline.workspace.relocation import path_rewriting
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.run_memory.stage_memory import key_of
from patchline.pipeline.workspace.tracking.tracked_run import FOLDER_TAG, owner_lock
from patchline.pipeline.workspace.tracking.tracking_store import ARTIFACTS, DATABASE

_LOCK = "workspace.lock"
_PREFECT = "prefect.db"
_RECORDS = ("stages/*/*.json", "runs/*/stages/*.json")
"""Results of stages, whose names depend on what is in them."""
_TEXTS = (
    "ingestions/*.json",
    "promotions/**/*.json",
    "watches/*.json",
    "runs/*/request.json",
    "runs/*/summary.json",
    "runs/*/config.yaml",
)
_OF_SERVERS = ("state.json", "login.env", "secret", "plan.json")
"""Files about running servers, which are those of the original."""
_OWN_RUNS = (
    "SELECT folder.value FROM tags AS folder JOIN tags AS source USING (run_uuid) "
    "WHERE folder.key = ? AND source.key = ? AND source.value = ?"
)
_OF_RUNS = (FOLDER_TAG, "mlflow.source.name", "patchline run")
"""The folders of the runs that Patchline made with a store."""


def follow() -> str | None:
    """Make the workspace of the working directory follow its folder, if it lies elsewhere now.

    Returns:
        One sentence about what was done; none if there was nothing to do.

    Raises:
        OrchestrationError: if a run or `patchline up` still uses a moved workspace.
        StorageError: if it may not be written, or a database cannot be rewritten.
    """
    workspace = WORKSPACE.resolve()
    if not workspace.is_dir() and not Path(DATABASE).is_file():
        return None
    identity = workspace_identity.read(workspace)
    if identity and workspace_identity.is_at_home(workspace, identity):
        return None
    with hold_lock(workspace / _LOCK), storage_errors(workspace / workspace_identity.FILE):
        if identity is None:  # the lock has just made a record of a new workspace
            return _record(workspace)
        identity = workspace_identity.read(workspace) or identity  # another process was first
        if identity.folder == str(workspace.parent):  # or it was restored in its place
            now = workspace_identity.follow_move(identity, workspace)
            workspace_identity.write(workspace, now)
            return None
        return _follow(workspace, identity)


def _record(workspace: Path) -> str | None:
    """Record a workspace without a record; its store may have been brought from elsewhere.

    A store is followed only if a run of Patchline in the old folder is in it. Another program's
    store may name a folder that exists, but not where this process can see it: in a container.
    """
    old = _folder_of(workspace.parent / DATABASE)
    changed = _rewrite(workspace, old) if old else 0
    if workspace_identity.read(workspace) is None:
        _write_new(workspace)
    return _describe_move(old, workspace.parent, changed) if old else None


def _follow(workspace: Path, identity: Identity) -> str | None:
    old, new = Path(identity.folder), workspace.parent
    if is_same_folder(old / WORKSPACE, workspace):
        return None
    is_copy = _holds(old / WORKSPACE, identity)
    if not is_copy and (users := _users(workspace)):
        raise OrchestrationError(
            f"This workspace was moved from {visible(str(old))} to {visible(str(new))} while "
            f"{users} still uses it. Stop that (`patchline down --now` stops servers and their "
            "runs), or move the workspace back; then run the command again."
        )
    changed = _rewrite(workspace, old)
    if is_copy:
        _forget_processes(workspace)
        _write_new(workspace, identity.id)
        return (
            f"This workspace is a copy of {visible(str(old))}. Its runs and models now use their "
            f"own files in {visible(str(new))} ({changed} paths); the original is untouched."
        )
    workspace_identity.write(workspace, workspace_identity.follow_move(identity, workspace))
    return _describe_move(old, new, changed)


def _write_new(workspace: Path, copied_from: str = "") -> None:
    """Give a workspace a new id, and its own schedules with it."""
    identity = workspace_identity.new(workspace, copied_from)
    if (workspace / _PREFECT).is_file():
        with _translate_sqlite_errors(workspace):
            path_rewriting.claim_prefect(workspace / _PREFECT, workspace.parent, identity.id)
    workspace_identity.write(workspace, identity)


@contextmanager
def _translate_sqlite_errors(workspace: Path) -> Iterator[None]:
    """Turn errors of SQLite into one with a remedy.

    Raises:
        StorageError: if a database cannot be rewritten.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(
            f"The databases in {workspace.parent} cannot be rewritten for their new folder "
            f"({error}). Stop other programs that use them, and run the command again."
        ) from error


def _describe_move(old: Path, new: Path, changed: int) -> str:
    return (
        f"This workspace was moved from {visible(str(old))}. Its runs and models now use their "
        f"files in {visible(str(new))} ({changed} paths)."
    )


def _holds(workspace: Path, identity: Identity) -> bool:
    """Return whether the old folder still holds the workspace, as far as can be seen."""
    try:
        status = workspace.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # it cannot be looked into: what is here must not act for it
    other = workspace_identity.read(workspace)
    if other is not None:
        return other.id == identity.id
    return (status.st_dev, status.st_ino) == (identity.device, identity.inode)


def _users(workspace: Path) -> str:
    """Return what still uses a workspace in words; nothing if nothing does."""
    if local_services.is_supervised(workspace.parent):
        return "`patchline up`"
    for record in live_runs.records(workspace):
        may_live = not record.is_dead and (record.is_here or record.is_alive)
        if record.ended is None and may_live:
            return f"process {record.pid} ({record.what})"
    for folder in (workspace / "runs").glob("*"):
        if is_held(owner_lock(folder)):
            return f"the run in {folder.name}"
    return ""


def _folder_of(database: Path) -> Path | None:
    """Return the folder that a store was in, if that no longer exists and is the only one.

    Patchline must have trained there: see `_record`.
    """
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as store:
            rows = store.execute("SELECT artifact_location FROM experiments").fetchall()
            used = [Path(str(row[0])) for row in store.execute(_OWN_RUNS, _OF_RUNS)]
    except sqlite3.Error:
        return None
    places = {artifact_path(str(row[0])) for row in rows}
    folders = {each.parents[1] for each in places if each and each.parent.name == ARTIFACTS}
    gone = [folder for folder in folders if not folder.exists()]
    gone = [old for old in gone if any(each.is_relative_to(old / WORKSPACE) for each in used)]
    return gone[0] if len(gone) == 1 and (database.parent / ARTIFACTS).is_dir() else None


def _rewrite(workspace: Path, old: Path) -> int:
    """Rewrite everything that leads into the old folder; return the number of changed paths.

    It may be interrupted and repeated: what has been rewritten no longer leads there.
    """
    rewrite = path_rewriting.between(old, workspace.parent)
    with _translate_sqlite_errors(workspace):
        changed = sum(path_rewriting.rewrite_mlflow(each, rewrite) for each in _stores(workspace))
        if (workspace / _PREFECT).is_file():
            path_rewriting.rewrite_prefect(workspace / _PREFECT, rewrite)
    for file in _files(workspace, _TEXTS):
        if (text := path_rewriting.rewrite_text(file, rewrite)) is not None:
            write_text(file, text)
            changed += 1
    for file in _files(workspace, _RECORDS):
        changed += _rewrite_record(file, rewrite)
    return changed


def _stores(workspace: Path) -> Iterator[Path]:
    """Yield the SQLite files of MLflow that lie in the workspace's folder."""
    given = sqlite_path(os.environ.get("MLFLOW_TRACKING_URI", ""))
    stores = {workspace.parent / DATABASE, *([given.resolve()] if given else [])}
    for store in stores:
        if store.parent == workspace.parent and store.is_file():
            yield store


def _files(workspace: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from workspace.glob(pattern)


def _rewrite_record(file: Path, rewrite: path_rewriting.Rewrite) -> int:
    """Rewrite the record of a stage; its key is the digest of inputs, paths among them."""
    text = path_rewriting.rewrite_text(file, rewrite)
    if text is None:
        return 0
    record = json.loads(text)
    old_key = record.get("key")
    record["key"] = key_of(record["stage"], record["ingredients"])
    name = f"{record['key']}.json" if file.stem == old_key else file.name
    write_text(file.with_name(name), json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if name != file.name:
        file.unlink()
    return 1


def _forget_processes(workspace: Path) -> None:
    """Delete what a copy holds about processes and servers of the original."""
    for name in _OF_SERVERS:
        (local_services.services_folder(workspace.parent) / name).unlink(missing_ok=True)
    for file in (workspace / live_runs.FOLDER).glob("*"):
        file.unlink(missing_ok=True)
