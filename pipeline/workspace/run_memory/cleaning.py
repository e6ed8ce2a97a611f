"""What of a workspace may go: files that no registered version, resumed run or repeated run needs.

Nothing here is removed unless a user asks for it; no run removes anything by itself. What is not
known counts as needed: a run that the store does not know, or one that may be alive.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchline.pipeline.errors import StorageError
from patchline.pipeline.former_settings import with_todays_names
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace import chosen, lease
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.workspace_folder import (
    FEATURES,
    FEATURES_FILE,
    LAST_CHECKPOINT,
    PREDICTIONS,
    PREVIOUS_CHECKPOINT,
    REQUEST_FILE,
    RUNS,
    STORES,
)
from patchline.pipeline.workspace.files.workspace_identity import present_path
from patchline.pipeline.workspace.object_store import ObjectInfo
from patchline.pipeline.workspace.run_folders import CHECKPOINT
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.shared_files import (
    FILES,
    NAMES,
    DamagedObjectError,
    SharedFiles,
    contents_of,
)
from patchline.pipeline.workspace.tracking import liveness
from patchline.pipeline.workspace.tracking.tracked_run import FOLDER_TAG
from patchline.pipeline.workspace.tracking.tracking_store import all_runs, store_exists

CHECKPOINTS = (LAST_CHECKPOINT, PREVIOUS_CHECKPOINT, "restart-*.safetensors")
"""Files in the folder of a training run; a finished one needs them only if it is extended."""
_LOCKS = ".locks"
_FINISHED = "FINISHED"


class Removable(FrozenModel):
    """A file or a folder that may go."""

    kind: str
    """What it is: checkpoint, store, features or predictions."""
    path: Path
    files: int
    bytes: int
    """What its removal frees; a file that other runs share by hard links frees nothing."""


class RemovableObject(FrozenModel):
    """An object on the store of a shared workspace that may go."""

    kind: str = "object"
    path: str
    """Address of the object."""
    key: str
    files: int = 1
    bytes: int


class Cleaning(FrozenModel):
    """What may go from a workspace, and what has to stay."""

    removable: tuple[Removable | RemovableObject, ...]
    resumable_runs: int = 0
    """Runs that can be resumed, with everything they need."""
    unknown_runs: int = 0
    """Folders of runs that the store does not know."""
    active_runs: int = 0
    """Flow runs that may be using stores and features."""
    leases: int = 0
    """Runs with a lease on the store of a shared workspace."""

    @property
    def files(self) -> int:
        """Number of files."""
        return sum(each.files for each in self.removable)

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(each.bytes for each in self.removable)


@dataclass
class _Needed:
    """What the runs of a workspace still need."""

    stores: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    predictions: set[str] = field(default_factory=set)
    extended: set[str] = field(default_factory=set)
    """Ids of finished runs whose training an unfinished run extends."""


def find_removable(workspace: Path) -> Cleaning:
    """Return what may go from a workspace.

    Args:
        workspace: the folder `.patchline`.
    """
    workspace = workspace.resolve()
    folders = sorted(each for each in (workspace / RUNS).glob("*") if each.is_dir())
    states = _states()
    active = sum(not record.is_dead for record in live_runs.records(workspace))
    needed, finished, resumable, unknown = _Needed(), list[tuple[str, Path]](), 0, 0
    newest: dict[str, Path] = {}
    for folder in folders:
        run_id, status = states.get(folder, ("", ""))
        if not run_id:
            unknown += 1
            _add(needed, folder)
        elif status == _FINISHED:
            finished.append((run_id, folder))
            newest[_name(folder)] = folder  # the names of folders begin with their date
        else:
            resumable += (folder / REQUEST_FILE).is_file()
            _add(needed, folder)
    for folder in newest.values():
        _add(needed, folder, is_finished=True)
    needed.extended |= _find_extended_elsewhere(workspace, states)
    paths = [("checkpoint", each) for each in _checkpoints(finished, needed)]
    if not active:
        paths += [("store", each) for each in _find_unused(workspace / STORES, needed.stores)]
        paths += [
            ("features", each) for each in _find_unused(workspace / FEATURES, needed.features)
        ]
        predicted = _find_unused(workspace / PREDICTIONS, needed.predictions)
        paths += [("predictions", each) for each in predicted]
    objects, leases = list[RemovableObject](), list[str]()
    if shared := chosen.find_shared_files():
        complete = {
            folder.name
            for folder, (run_id, status) in states.items()
            if status == _FINISHED and run_id not in needed.extended
        }
        objects, leases = find_unneeded_objects(shared, complete)
    return Cleaning(
        removable=(*_measure(paths), *objects),
        resumable_runs=resumable,
        unknown_runs=unknown,
        active_runs=active,
        leases=len(leases),
    )


def _find_extended_elsewhere(workspace: Path, states: Mapping[Path, tuple[str, str]]) -> set[str]:
    """Return what unfinished runs extend of which the store alone has the request."""
    shared, extended = chosen.find_shared_files(), set[str]()
    for name in shared.names(f"{RUNS}/") if shared else ():
        folder = workspace / name.rpartition("/")[0]
        _, status = states.get(folder, ("", ""))
        is_request = name.endswith(f"/{Path(REQUEST_FILE).stem}")
        if is_request and status != _FINISHED and not (folder / REQUEST_FILE).is_file():
            with tempfile.TemporaryDirectory() as scratch:
                if shared and shared.fetch_folder(name, Path(scratch) / RUNS):
                    extended |= _find_extended_by(Path(scratch) / RUNS)
    return extended


def _find_extended_by(folder: Path) -> set[str]:
    """Return the id of the run that a run extends, if it does."""
    request = _json(folder / REQUEST_FILE)
    extends = with_todays_names(request.get("config", {}))[0].get("record", {}).get("extends")
    return {str(extends)} if extends else set()


def remove(workspace: Path, cleaning: Cleaning) -> list[Removable | RemovableObject]:
    """Remove what may go, and return what is gone; a store that is being built stays.

    Raises:
        StorageError: if something cannot be removed.
    """
    objects = {each.key: each for each in cleaning.removable if isinstance(each, RemovableObject)}
    files = [
        each
        for each in cleaning.removable
        if isinstance(each, Removable) and _is_removed(workspace.resolve(), each)
    ]
    removed = list[RemovableObject]()
    if objects and (shared := chosen.find_shared_files()):
        removed += [objects[key] for key in delete_objects(shared, objects)]
    gone = {each.path for each in files if each.kind == "checkpoint"}
    for file in _record_files(workspace.resolve()):
        _forget(workspace.resolve(), file, gone)
    return [*files, *removed]


def _states() -> dict[Path, tuple[str, str]]:
    """Return the id and the status of each run in the store, by its folder."""
    if not store_exists():
        return {}
    return {
        liveness.folder_of(run): (
            run.info.run_id,
            run.info.status,
        )
        for run in all_runs(f"tags.`{FOLDER_TAG}` LIKE '%{RUNS}%'")
        if liveness.folder_of(run).parent.name == RUNS  # those of nested runs lie deeper
    }


def _name(folder: Path) -> str:
    """Return the name of the model that a run trained; its folder's own where that is not known."""
    config = _json(folder / REQUEST_FILE).get("config", {})
    return str(config.get("name") or folder.name)


def _add(needed: _Needed, folder: Path, *, is_finished: bool = False) -> None:
    """Add what a run needs to be resumed, or repeated."""
    for job in folder.rglob("job.json"):
        content = _json(job)
        unlabelled = content.get("unlabelled") or {}
        needed.stores |= _names(content.get("store"), unlabelled.get("store"))
    prepared = _json(folder / "stages" / "prepare.json")
    further = prepared.get("result", {}).get("unlabelled")
    needed.stores |= _names(prepared.get("folder"), further)
    needed.predictions |= _names(_json(folder / "stages" / "teach.json").get("folder"))
    for file in folder.rglob(FEATURES_FILE):
        needed.features.update(map(str, _json(file).get("folders", ())))
    if not is_finished:
        needed.extended |= _find_extended_by(folder)


def _names(*paths: object) -> set[str]:
    """Return the last parts of those paths that are there."""
    return {Path(str(path)).name for path in paths if path}


def _checkpoints(finished: Iterable[tuple[str, Path]], needed: _Needed) -> Iterator[Path]:
    for run_id, folder in finished:
        if run_id in needed.extended:
            continue
        for pattern in CHECKPOINTS:
            yield from sorted(folder.rglob(pattern))


def _find_unused(folder: Path, needed: set[str]) -> Iterator[Path]:
    for each in sorted(folder.glob("*")):
        hidden = each.name.startswith(".")  # locks, and stores that are being built
        if each.is_dir() and not hidden and each.name not in needed:
            yield each


def _measure(paths: Iterable[tuple[str, Path]]) -> Iterator[Removable]:
    """Count files and bytes; of hard links to one file, the last one that goes frees it."""
    links: dict[tuple[int, int], int] = {}
    for kind, path in paths:
        files = freed = 0
        for file in [path] if path.is_file() else path.rglob("*"):
            with contextlib.suppress(OSError):
                if not file.is_file():
                    continue
                stat = file.lstat()
                key = stat.st_dev, stat.st_ino
                links[key] = links.get(key, 0) + 1
                files += 1
                freed += stat.st_size if links[key] == stat.st_nlink else 0
        yield Removable(kind=kind, path=path, files=files, bytes=freed)


def _is_removed(workspace: Path, each: Removable) -> bool:
    if each.kind != "store":
        _delete(each.path)
        return True
    with file_locks.try_lock(workspace / STORES / _LOCKS / each.path.name) as free:
        if free:
            _delete(each.path)
    return free


def _delete(path: Path) -> None:
    with storage_errors(path):
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:  # somebody else has removed it
            return


def _record_files(workspace: Path) -> Iterator[Path]:
    yield from (workspace / "stages").glob("*/*.json")
    yield from (workspace / RUNS).glob("*/stages/*.json")


def _forget(workspace: Path, file: Path, gone: set[Path]) -> None:
    """Take files out of a stage's record, so that its result is still trusted without them."""
    record = _json(file)
    files = record.get("files")
    if not isinstance(files, Mapping):
        return
    folder = present_path(workspace, Path(str(record.get("folder", ""))))
    left = {name: digest for name, digest in files.items() if folder / name not in gone}
    if len(left) < len(files):
        with contextlib.suppress(StorageError):  # then the stage is computed again
            write_text(file, json.dumps({**record, "files": left}, indent=2) + "\n")


def _json(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file; nothing if it is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


_UNFINISHED = (".building-*", ".*.part")
_OLD_SECONDS = 24 * 3600.0


def remove_leftovers(workspace: Path) -> list[Path]:
    """Remove and return unfinished files that are a day old, unless a flow run may be alive.

    Args:
        workspace: the folder `.patchline`.
    """
    if not all(record.is_dead for record in live_runs.records(workspace)):
        return []
    oldest = time.time() - _OLD_SECONDS
    left = [path for path in _find_unfinished(workspace) if _last_change(path) < oldest]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return left


def _find_unfinished(workspace: Path) -> Iterator[Path]:
    for pattern in _UNFINISHED:
        yield from workspace.rglob(pattern)
    for lock_file in (workspace / live_runs.FOLDER).glob("*.lock"):
        if not lock_file.with_suffix(".json").exists():
            yield lock_file


def _last_change(path: Path) -> float:
    """Return when a file or folder was last changed, in seconds since the epoch."""
    try:
        inside = path.rglob("*") if path.is_dir() else ()
        return max(float(each.lstat().st_mtime) for each in (path, *inside))
    except OSError:
        return time.time()  # it is being changed right now


_JOBS = "jobs/"
"""Names of what workers on other machines read and write; a killed run leaves some."""
_YOUNG = dt.timedelta(days=1)
"""A machine may be about to name a content that is younger."""
_LOOK_AGAIN_SECONDS = 5.0


def find_unneeded_objects(
    shared: SharedFiles, finished_runs: Collection[str]
) -> tuple[list[RemovableObject], list[str]]:
    """Return what no name in a store needs, once the checkpoints of finished runs are gone.

    Nothing is deleted, also not what is damaged. What a damaged name needs is not known, so all
    contents stay meanwhile. So they do while somebody who works on a run, or decodes for one, has a
    lease that has not expired; these are returned, too.

    Args:
        shared: the files of the shared workspace.
        finished_runs: names of the folders of runs whose checkpoints are not needed.

    Raises:
        StorageError: if the store does not answer.
    """
    active = _active_leases()
    unneeded, needed, damaged = list[ObjectInfo](), set[str](), list[str]()
    before = shared.store.now() - _YOUNG
    for info in shared.store.list(NAMES):
        name = info.key.removeprefix(NAMES).removesuffix(".json")
        is_left = name.startswith(_JOBS) and info.modified < before and not active
        if is_left or _is_old_checkpoint(name, finished_runs):
            unneeded.append(info)
            continue
        try:
            if named := shared.lasting(name):
                needed.update(contents_of(named.reference))
        except DamagedObjectError:
            damaged.append(info.key)
    if damaged:
        number = counted(len(damaged), "name")
        shared.on_note(
            f"{number} in {shared.uri} cannot be read, such as {damaged[0]}. "
            "Which contents are needed is not known, so none are listed. A run on a machine that "
            "still has the files repairs them"
        )
    for info in () if active or damaged else shared.store.list(FILES):
        if info.key not in needed and info.modified < before:
            unneeded.append(info)
    objects = [
        RemovableObject(path=f"{shared.uri}/{each.key}", key=each.key, bytes=each.bytes)
        for each in unneeded
    ]
    return objects, active


def delete_objects(shared: SharedFiles, keys: Iterable[str]) -> Iterator[str]:
    """Delete objects, and yield the keys of those that are gone.

    Leases are looked at again: who has begun meanwhile may be about to name a content.

    Raises:
        StorageError: if the store does not answer.
    """
    active, looked = list[str](), float("-inf")
    for key in keys:
        if time.monotonic() - looked > _LOOK_AGAIN_SECONDS:
            active, looked = _active_leases(), time.monotonic()
        if not active or key.startswith(f"{NAMES}{RUNS}/"):
            shared.store.delete(key)
            yield key


def _active_leases() -> list[str]:
    return [name for name, has_expired in lease.find_expired().items() if not has_expired]


def _is_old_checkpoint(name: str, finished_runs: Collection[str]) -> bool:
    parts = name.split("/")
    return parts[0] == RUNS and parts[-1] == CHECKPOINT and parts[1] in finished_runs
