"""A job that is done on a machine without a folder in common, through a shared workspace.

Names of a job in the store (see `pipeline.workspace.shared_files`):

    jobs/3f9a…/task     what the worker reads: its folder, and the files that its job names
    jobs/3f9a…/result   what it has written

The machine of the run sends the first and receives the second; both forget the names afterwards.
What grows while the worker runs, its events and its log, takes the launcher's own way. Paths are
those of each machine: of the workspace's folder, or of what lies outside of it on the first one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from patchline.pipeline.errors import PipelineError, StorageError, WorkerError
from patchline.pipeline.workers.launcher import GROUP_FILE, WorkerTask
from patchline.pipeline.workers.missing_data import MadeArchive, find_made_archive, make
from patchline.pipeline.workers.worker_start import LOG_FILE
from patchline.pipeline.workspace import cache, chosen, remote_data, run_folders
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.file_locks import try_lock
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.paths import map_texts, safe_join
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import RUNS, WORKSPACE, make_folder
from patchline.pipeline.workspace.object_store import Address
from patchline.pipeline.workspace.shared_files import DamagedObjectError, Reference, SharedFiles

JOBS = "jobs"
NODE_FOLDER_VARIABLE = "PATCHLINE_NODE_FOLDER"
"""Where a machine that works for others keeps its caches; a folder of the user's by default."""
Grown = dict[str, Any]
"""What events and log have grown by: their text, and the files that the events name."""

_JOB, _EVENTS, _RESULT = "job.json", "events.jsonl", "result.json"
_INSIDE, _OUTSIDE = "workspace", "outside"
_MARK = "{patchline}"
"""Before a key in the place of a path."""
_SOURCE = "The job of a worker"
_STREAMED = (_EVENTS, LOG_FILE)
_OF_ONE_MACHINE = frozenset({_JOB, _RESULT, GROUP_FILE, *_STREAMED, "previous.safetensors"})
_SEVERAL_BUCKETS = "several buckets"
"""In place of the address of data: the list of the job names its files."""
_ARCHIVES = "archives.json"
"""In the folder of a job: the archives that the machine of the run has made of objects."""
_SCRATCH = ("processes", "node-")
"""Folders in a worker's folder for what its processes share while they run."""
_LOOK_SECONDS, _AGAIN_SECONDS = 0.2, 5.0
_LONGEST_SEND_SECONDS = 600.0
_MOST_TEXT = 1 << 20

_digests: dict[tuple[str, int, int], FileDigest] = {}
_held = contextlib.ExitStack()


def workspace_uri() -> str:
    """Return the address of the shared workspace of this process; empty for one of its own.

    Raises:
        PipelineError: if the store cannot be reached or used.
    """
    shared = chosen.find_shared_files()
    return shared.uri if shared else ""


def enter_workspace(uri: str) -> Path:
    """Work in a cache of a shared workspace on this machine, and return its folder `.patchline`.

    The cache is below `PATCHLINE_NODE_FOLDER`, by default `~/.cache/patchline/nodes`. It belongs to
    this process until it ends; what jobs have left there is removed, decoded images stay.

    Raises:
        PipelineError: if the store cannot be reached or used.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "patchline/nodes"
    base = Path(os.environ.get(NODE_FOLDER_VARIABLE) or default).absolute()
    base /= hashlib.sha256(uri.encode()).hexdigest()[:16]
    with storage_errors(base):
        make_folder(base)
        number = 0
        while not _held.enter_context(try_lock(base / f"{number}.lock", 0)):
            number += 1
        own = base / str(number)
        make_folder(own)
        os.chdir(own)
    chosen.use(uri)
    if chosen.find_shared_files() is None:
        raise StorageError(f"{uri} is no shared workspace. Report this.")
    place = WORKSPACE.resolve()
    for left in (place / RUNS, place / JOBS, *place.glob(".building-*")):
        shutil.rmtree(left, ignore_errors=True)
    cache.shrink()
    return place


class _Roots:
    """The files of a job on one machine, each by a key that is the same on all machines.

    Args:
        workspace: the folder `.patchline`.
        outside: files and folders that lie elsewhere; they are numbered in this order.
    """

    def __init__(self, workspace: Path, outside: Iterable[Path]) -> None:
        self.workspace, self.outside = workspace, tuple(outside)
        numbered = {f"{_OUTSIDE}/{number}": top for number, top in enumerate(self.outside)}
        self._tops = {_INSIDE: workspace, **numbered}

    def key_of(self, path: Path) -> str:
        for name, top in self._tops.items():
            if path.is_relative_to(top):
                below = path.relative_to(top).as_posix()
                return name + (f"/{below}" if below != "." else "")
        raise ValueError(path)

    def path_of(self, key: str) -> Path:
        for name, top in self._tops.items():
            if f"{key}/".startswith(f"{name}/"):
                below = key[len(name) + 1 :]
                return safe_join(top, below, _SOURCE) if below else top
        raise ValueError(key)

    def marked(self, value: Any) -> Any:
        """Return a JSON value in which this machine's paths have become marks."""
        return map_texts(value, self._mark)

    def unmarked(self, value: Any) -> Any:
        """Return a JSON value in which marks have become this machine's paths."""
        return map_texts(value, self._unmark)

    def marked_text(self, text: str) -> str:
        """Return lines in which the workspace of this machine has become a mark."""
        return text.replace(_quote(self.workspace), _MARK + _INSIDE)

    def unmarked_text(self, text: str) -> str:
        """Return lines in which the mark has become the workspace of this machine."""
        return text.replace(_MARK + _INSIDE, _quote(self.workspace))

    def _mark(self, text: str) -> str:
        with contextlib.suppress(ValueError):  # no path of the job
            return _MARK + self.key_of(Path(text))
        return text

    def _unmark(self, text: str) -> str:
        with contextlib.suppress(ValueError):  # a text that only looks like it
            if text.startswith(_MARK):
                return str(self.path_of(text.removeprefix(_MARK)))
        return text


class SentJob:
    """A job on its way, as the machine of the run sees it.

    Args:
        task: the worker's task, whose folder has `job.json`.

    Raises:
        StorageError: if the store does not take its files.
        WorkerError: if the workspace is of this machine alone.
    """

    def __init__(self, task: WorkerTask) -> None:
        self._folder, self._shared = task.folder, _require_shared_files()
        workspace = WORKSPACE.resolve()
        run_folders.fetch_checkpoint(task.folder)
        events = task.folder / _EVENTS
        AppendLog(events).repair()
        named = [each for each in (task.folder, *task.files) if each != workspace]
        inside = [each for each in named if each.is_relative_to(workspace)]
        self._roots = _Roots(workspace, (each for each in named if each not in inside))
        self.name = f"{JOBS}/{uuid.uuid4().hex}"
        keys = [self._roots.key_of(each) for each in named]
        files = {self._roots.key_of(file): file for file in _files_of(named)}
        if events.exists():
            files[self._roots.key_of(events)] = events
        job = json.loads((task.folder / _JOB).read_text(encoding="utf-8"))
        value = {
            "keys": list(dict.fromkeys(keys)),
            "outside": [each.name for each in self._roots.outside],
            "job": self._roots.marked(job),
            "workspace": str(workspace),
            "data": [
                {"path": self._roots.key_of(each), "address": address, "file": file.is_file()}
                for each in task.same_place
                if (file := remote_data.archive_or_folder(each)).is_relative_to(_objects())
                and (address := str(_address_of(file) or _SEVERAL_BUCKETS))
            ],
        }
        made = [
            self._roots.marked(archive.model_dump(mode="json"))
            for each in task.same_place
            if not each.is_relative_to(_objects()) and (archive := find_made_archive(each))
        ]
        with tempfile.TemporaryDirectory(prefix="patchline-") as scratch:
            if made:
                file = Path(scratch) / _ARCHIVES
                file.write_text(json.dumps(made), encoding="utf-8")
                files[self._roots.key_of(task.folder / _ARCHIVES)] = file
            digests = _upload(self._shared, files)
        reference = Reference(files=digests, value=value)
        self._shared.replace(f"{self.name}/task", reference, None)

    def grow(self, grown: Grown) -> None:
        """Let events and log grow here as they have on the other machine.

        Raises:
            WorkerError: if a file that the events name did not arrive.
        """
        self._fetch({key: FileDigest.model_validate(each) for key, each in grown["files"].items()})
        for name in _STREAMED:
            if text := grown["text"].get(name):
                lines = self._roots.unmarked_text(text).encode()
                AppendLog(self._folder / name).append_lines(lines)

    def take_result(self) -> None:
        """Fetch what the worker has written.

        Raises:
            WorkerError: if it is not there, or damaged.
        """
        named = self._shared.find(f"{self.name}/result")
        if named is None:
            raise WorkerError(
                f"The result of a worker is not in {self._shared.uri}: all nodes need the same "
                "store behind that address (AWS_ENDPOINT_URL). Correct it, then resume the run."
            )
        value = named.reference.value
        self._fetch(named.reference.files)
        with storage_errors(self._folder):
            for key in value["removed"]:
                file = self._roots.path_of(key)
                file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other files are there
                    file.parent.rmdir()
            if value["result"] is not None:
                content = json.dumps(self._roots.unmarked(value["result"]))
                write_text(self._folder / _RESULT, content)

    def forget(self) -> None:
        """Remove its names from the store; contents that nothing else needs go with `clean`."""
        with contextlib.suppress(PipelineError):
            for part in ("task", "result"):
                self._shared.remove(f"{self.name}/{part}")

    def _fetch(self, files: Mapping[str, FileDigest]) -> None:
        try:
            _fetch_missing(self._shared, self._roots, files)
        except DamagedObjectError as error:
            raise WorkerError(
                f"What a worker has written did not arrive from {self._shared.uri}: {error}. "
                "Resume the run."
            ) from error


class ReceivedJob:
    """A job of another machine, as the machine that does it sees it; see `enter_workspace`.

    Args:
        name: the job's name in the shared workspace.

    Raises:
        PipelineError: if its files cannot be fetched.
    """

    def __init__(self, name: str) -> None:
        self._name, self._shared, place = name, _require_shared_files(), WORKSPACE.resolve()
        self._began = time.time()
        named = self._shared.find(f"{name}/task")
        if named is None:
            raise WorkerError(
                f"This node does not find the job {name} in {self._shared.uri}: all nodes need the "
                "same store behind that address (AWS_ENDPOINT_URL)."
            )
        value, files = named.reference.value, named.reference.files
        tops = enumerate(value["outside"])
        outside = [
            safe_join(place / name / _OUTSIDE / str(number), top, _SOURCE) for number, top in tops
        ]
        self._roots = _Roots(place, outside)
        self._tops = [self._roots.path_of(key) for key in value["keys"]]
        self.folder = self._tops[0]
        self._remove_others(files)
        try:
            _fetch_missing(self._shared, self._roots, files)
            self._fetch_data(value["data"], value["workspace"])
        except DamagedObjectError as error:
            raise WorkerError(f"The job is damaged in {self._shared.uri}: {error}.") from error
        for top in self._tops:
            if top.is_relative_to(place) and top.exists():
                cache.mark_used(top)
        make_folder(self.folder)
        job = json.dumps(self._roots.unmarked(value["job"]), indent=2)
        write_text(self.folder / _JOB, job)
        self._before = {file: _state(file) for file in _files_of(self._tops)}
        self._readers = {name: _Lines(self.folder / name) for name in _STREAMED}
        self._ready: list[Grown] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._cancelled = False
        self._sender: threading.Thread | None = None
        self.error = ""
        """Why its result could not be sent."""

    def _fetch_data(self, named: Sequence[Mapping[str, Any]], theirs: str) -> None:
        """Download what the job reads of an object store, and rewrite the paths in its lists.

        Args:
            named: data that the job names: `path`, `address`, and whether it is a `file`.
            theirs: the folder `.patchline` of the machine of the run.
        """
        archives = {str(self._roots.path_of(each["path"])) for each in named if each["file"]}
        lists = [each for each in self.folder.glob("*.jsonl") if each.name != _EVENTS]
        keys, first = dict[Path, list[str]](), list[str]()
        for file in lists:
            text = file.read_text(encoding="utf-8")
            text = text.replace(_quote(Path(theirs)), _quote(self._roots.workspace))
            file.write_text(text, encoding="utf-8")
            for line in map(json.loads, text.splitlines()):
                words = list(_strings(line))
                first += words[:1]
                for path in map(Path, set(words) - archives):
                    if _address_of(path) is not None:
                        bucket = path.parents[len(path.relative_to(_objects()).parts) - 3]
                        keys.setdefault(bucket, []).append(path.relative_to(bucket).as_posix())
        for each in named:
            if each["address"] != _SEVERAL_BUCKETS and (each["file"] or not lists):
                remote_data.local_path(each["address"], whole=False)
            else:
                keys.setdefault(self._roots.path_of(each["path"]), []).extend(first)
        for base, below in keys.items():
            remote_data.local_files(base, below)
        for made in self._made_archives():
            make(made, first)

    def _made_archives(self) -> Iterator[MadeArchive]:
        """Yield the archives of the job, with paths of this machine, all in its workspace."""
        file = self.folder / _ARCHIVES
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        for each in self._roots.unmarked(content):
            made = MadeArchive.model_validate(each)
            parts = [path for part in made.archives for path in (part.file, part.object)]
            for path in (made.file, *parts):
                self._roots.path_of(self._roots.key_of(Path(path)))  # refuses one that leads out
            yield made

    def _remove_others(self, files: Mapping[str, FileDigest]) -> None:
        """Remove what an earlier job has left in the folders that belong to runs."""
        shutil.rmtree(self.folder, ignore_errors=True)
        runs = self._roots.workspace / RUNS
        present = {self._roots.path_of(key) for key in files}
        for file in _files_of(top for top in self._tops if top.is_relative_to(runs)):
            if file not in present:
                file.unlink(missing_ok=True)

    def report(self) -> None:
        """Send what grows, in a thread, until `end`; then what the worker has written."""
        self._sender = threading.Thread(target=self._send, name="results", daemon=True)
        self._sender.start()

    def grown(self) -> Grown | None:
        """Return what has grown since the last call and was not returned yet; None for nothing."""
        with self._lock:
            return self._ready.pop(0) if self._ready else None

    def end(self, *, cancelled: bool = False) -> None:
        """Let the thread send the rest of a worker that has ended, or nothing if cancelled."""
        self._cancelled = self._cancelled or cancelled
        self._end.set()

    @property
    def reports(self) -> bool:
        """Whether it sends what its worker writes."""
        return self._sender is not None

    @property
    def is_sent(self) -> bool:
        """Whether all is sent, or has failed for good, and all that has grown was returned."""
        is_alive = self._sender is not None and self._sender.is_alive()
        return self._end.is_set() and not is_alive and not self._ready

    def remove(self) -> None:
        """Remove its folder, and let the caches fit their limit again."""
        for top in (self.folder, self._roots.workspace / self._name):
            shutil.rmtree(top, ignore_errors=True)
        with contextlib.suppress(PipelineError):
            cache.shrink(self._began)

    # -- sending -------------------------------------------------------------------------------

    def _send(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self._patiently(self._send_grown)
        self._patiently(self._send_grown)
        self._patiently(self._send_result)

    def _patiently(self, send: Callable[[], None]) -> None:
        """Send, and repeat it while the store does not answer."""
        until = time.monotonic() + _LONGEST_SEND_SECONDS
        while not self._cancelled:
            try:
                send()
            except (PipelineError, OSError) as error:
                if time.monotonic() > until:
                    self.error = str(error)
                    return
                time.sleep(_AGAIN_SECONDS)
            else:
                return

    def _send_grown(self) -> None:
        while any((lines := {n: each.text() for n, each in self._readers.items()}).values()):
            files = _upload(self._shared, self._artifacts(lines[_EVENTS]))
            marked = {name: self._roots.marked_text(text) for name, text in lines.items()}
            digests = {key: each.model_dump() for key, each in files.items()}
            with self._lock:
                self._ready.append({"text": marked, "files": digests})
            for each in self._readers.values():
                each.advance()

    def _artifacts(self, events: str) -> dict[str, Path]:
        """Return the files that events name, by key."""
        found = {}
        for event in map(json.loads, events.splitlines()):
            if event.get("kind") == "artifact":
                file = Path(event["path"]).absolute()
                if file.is_file() and file.is_relative_to(self._roots.workspace):
                    found[self._roots.key_of(file)] = file
        return found

    def _send_result(self) -> None:
        present = {file: _state(file) for file in _files_of(self._tops)}
        written = {file for file, state in present.items() if self._before.get(file) != state}
        removed = [self._roots.key_of(file) for file in self._before.keys() - present.keys()]
        file = self.folder / _RESULT
        result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        written |= set(_files_of(self._named_in(result))) - self._before.keys()
        digests = _upload(self._shared, {self._roots.key_of(each): each for each in written})
        value = {"removed": sorted(removed), "result": self._roots.marked(result)}
        self._shared.replace(f"{self._name}/result", Reference(files=digests, value=value), None)

    def _named_in(self, value: Any) -> Iterator[Path]:
        """Yield the paths in a JSON value that lie in the workspace."""
        if isinstance(value, (dict, list)):
            for each in value.values() if isinstance(value, dict) else value:
                yield from self._named_in(each)
        elif isinstance(value, str) and value.startswith(
            (f"{self._roots.workspace}{os.sep}", str(WORKSPACE))
        ):
            yield Path(value).absolute()


class _Lines:
    """The whole lines of a file beyond what it held before; the same until `advance`."""

    def __init__(self, file: Path) -> None:
        self._log, self._text = AppendLog(file), ""
        self._log.skip()

    def text(self) -> str:
        """Return new lines, at most a megabyte or one line."""
        self._text = self._text or self._log.new_content(_MOST_TEXT).decode(errors="replace")
        return self._text

    def advance(self) -> None:
        """Take note that the lines are sent."""
        self._text = ""


def _require_shared_files() -> SharedFiles:
    shared = chosen.find_shared_files()
    if shared is None:
        raise WorkerError("A workspace of this machine alone has no store. Set --workspace.")
    return shared


def _files_of(tops: Iterable[Path]) -> Iterator[Path]:
    """Yield the files below some files and folders that another machine may need."""
    for top in dict.fromkeys(tops):
        if top.is_file():
            yield top
        elif top.is_dir():
            for file in sorted(top.rglob("*")):
                if file.is_file() and _travels(file.relative_to(top)):
                    yield file


def _travels(file: Path) -> bool:
    if any(part.startswith((".", *_SCRATCH)) for part in file.parts[:-1]):
        return False
    name = file.name
    return not (name in _OF_ONE_MACHINE or name.startswith(".") or name.endswith(".lock"))


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _digest(file: Path) -> FileDigest:
    """Return a file's digest, computed once while it stays as it is."""
    key = (str(file), *_state(file))
    if key not in _digests:
        _digests[key] = digest_of(file)
    return _digests[key]


def _upload(shared: SharedFiles, files: Mapping[str, Path]) -> dict[str, FileDigest]:
    """Upload files that the store does not hold, and return their digests by key."""
    digests = {key: _digest(file) for key, file in files.items()}
    by_folder: dict[Path, dict[str, FileDigest]] = {}
    for key, file in files.items():
        by_folder.setdefault(file.parent, {})[file.name] = digests[key]
    for folder, names in by_folder.items():
        shared.uploaded(folder, names)
    return digests


def _fetch_missing(shared: SharedFiles, roots: _Roots, files: Mapping[str, FileDigest]) -> None:
    """Fetch files that this machine lacks.

    Raises:
        DamagedObjectError: if one is missing or damaged.
    """
    by_folder: dict[Path, dict[str, FileDigest]] = {}
    for key, digest in files.items():
        file = roots.path_of(key)
        if not (file.is_file() and _digest(file) == digest):
            by_folder.setdefault(file.parent, {})[file.name] = digest
    for folder, names in by_folder.items():
        shared.fetch(Reference(files=names), folder)


def _address_of(path: Path) -> Address | None:
    """Return the address of data that this machine has downloaded from an object store.

    Returns:
        None for other data, and for the folder of several buckets.
    """
    objects = _objects()
    parts = path.relative_to(objects).parts if path.is_relative_to(objects) else ()
    if not parts[1:]:  # the folder of several buckets
        return None
    scheme, bucket, *rest = parts
    return Address(scheme, bucket, "/".join(rest))


def _objects() -> Path:
    return WORKSPACE.resolve() / FOLDER


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _quote(path: Path) -> str:
    """Return a path as it stands in JSON."""
    return json.dumps(str(path))[1:-1]
