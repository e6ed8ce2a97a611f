"""The folders of runs in a shared workspace: what another machine needs to continue a run.

Names of a run in the store (see `shared_files`):

    runs/RUN/request               the request, sent when the run is opened
    runs/RUN/training/checkpoint   the newest checkpoint of a training run, with what belongs to it
    runs/RUN/stages/train          the record of a finished stage, sent by the memory of stages
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from patchline.pipeline.errors import DamagedFileError, PipelineError
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.paths import safe_join, unsafe_reason
from patchline.pipeline.workspace.files.sealed_files import read_metadata
from patchline.pipeline.workspace.files.workspace_folder import (
    LAST_CHECKPOINT,
    PROGRESS,
    RUNS,
    WORKSPACE,
    make_folder,
)
from patchline.pipeline.workspace.shared_files import (
    NAMES,
    Reference,
    SharedFiles,
)

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"
_EVENTS = "events.jsonl"
_APPENDED = (".jsonl", ".log")
"""Files that grow in place: a link would grow with them."""
_LEFT_OUT = frozenset({"worker.log", "worker.lock", "result.json", "previous.safetensors"})


def send_file(file: Path) -> None:
    """Send a file of a run's folder to the store; nothing happens in a local workspace.

    Raises:
        StorageError: if the store does not take it.
    """
    shared = chosen.find_shared_files()
    if shared is not None:
        name = f"{name_of(file.parent)}/{file.stem}"
        shared.publish(name, file.parent, [file.name])


def name_of(folder: Path) -> str:
    """Return the path of a folder in the workspace."""
    return folder.resolve().relative_to(WORKSPACE.resolve()).as_posix()


def fetch(folder: Path, *, results: bool = False) -> bool:
    """Fetch what the store has of a run and this machine lacks, or has only in part.

    Args:
        folder: the folder of the run, in the folder `.patchline`.
        results: whether to fetch the results of its stages, too; whoever resumes the run fetches
            them when they are needed.

    Returns:
        Whether there is anything of the run.

    Raises:
        DataError: if a path in the store leads out of its folder.
        StorageError: if the store does not answer.
    """
    shared = chosen.find_shared_files()
    if shared is None:
        return False
    run = name_of(folder)
    names = shared.names(f"{run}/")
    stages = [name for name in names if name.startswith(f"{run}/stages/")]
    results_by_folder = _results(shared, stages, folder)
    for name in names:
        if name.endswith(f"/{CHECKPOINT}"):
            if WORKSPACE.resolve() / name.removesuffix(f"/{CHECKPOINT}") not in results_by_folder:
                _fetch_checkpoint(shared, name)
        elif name not in stages and (named := shared.find(name)):
            shared.fetch(named.reference, folder)
    for target, reference in results_by_folder.items() if results else ():
        if not target.exists():
            _fetch_folder(shared, reference, target)
    return bool(names)


def _results(shared: SharedFiles, stages: Iterable[str], folder: Path) -> dict[Path, Reference]:
    """Return the results of a run's stages by their folder; without those that runs share."""
    results = {}
    for name in stages:
        if named := shared.find(name):
            path = str(named.reference.value.get("folder", ""))
            inside = path.removeprefix(f"{name_of(folder)}/")
            if inside != path or unsafe_reason(path):
                place = safe_join(folder.resolve(), inside, f"{shared.uri}/{NAMES}{name}.json")
                results[place] = named.reference
    return results


def fetch_checkpoint(folder: Path) -> None:
    """Fetch the newest checkpoint of a training run if it was computed on another machine.

    Args:
        folder: the folder of the training, in the folder of its run; any other one has no
            checkpoints.

    Raises:
        StorageError: if the store does not answer.
    """
    shared = chosen.find_shared_files()
    if shared is not None and is_of_run(folder):
        _fetch_checkpoint(shared, f"{name_of(folder)}/{CHECKPOINT}")


def is_of_run(folder: Path) -> bool:
    """Return whether a folder is in the folder of a run."""
    return folder.resolve().is_relative_to(WORKSPACE.resolve() / RUNS)


def _fetch_checkpoint(shared: SharedFiles, name: str) -> None:
    """Fetch a checkpoint, unless this machine is as far: then its own is as good."""
    named = shared.find(name)
    target = safe_join(WORKSPACE.resolve(), name.rpartition("/")[0], shared.uri)
    if named is None or _is_as_far(target, named.reference):
        return
    with shared.unless_damaged(f"the checkpoint {name}"):
        _fetch_folder(shared, named.reference, target)


def _is_as_far(folder: Path, reference: Reference) -> bool:
    """Return whether a folder has a checkpoint that is as new as the one in the store.

    Events say nothing about it: those of another node arrive without checkpoints.
    """
    last = folder / LAST_CHECKPOINT
    if not last.exists():
        return False
    step = int(reference.value.get("step", 0))
    with suppress(DamagedFileError, ValueError, KeyError, TypeError):
        return int(json.loads(read_metadata(last)[PROGRESS])["step"]) >= step
    return False


def _fetch_folder(shared: SharedFiles, reference: Reference, target: Path) -> None:
    """Fetch a folder, complete or not at all; events that this machine has beyond it stay."""
    with replace_file(target) as part:
        shared.fetch(reference, part)
        if _count(target / _EVENTS) > _count(part / _EVENTS):
            shutil.copyfile(target / _EVENTS, part / _EVENTS)


def _count(file: Path) -> int:
    """Return the number of whole lines in a file; 0 if there is none."""
    try:
        return file.read_bytes().count(b"\n")
    except OSError:
        return 0


class CheckpointSender:
    """Sends the checkpoints of one training while the training continues.

    A checkpoint that is complete while an earlier one is still being sent waits; a newer one takes
    its place. A store that is away costs no training: the files are on this machine's disk.

    Args:
        folder: the folder of the training.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: Path | None = None
        self._step = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._said = False

    def send(self, step: int) -> None:
        """Take a snapshot of the folder, whose checkpoint of a step is complete, and send it."""
        if not is_of_run(self._folder):
            return
        snapshot = Path(tempfile.mkdtemp(dir=self._folder.parent, prefix=".building-"))
        try:
            _link_files(self._folder, snapshot)
        except OSError as error:
            shutil.rmtree(snapshot, ignore_errors=True)
            logger.warning("The checkpoint is kept on this machine alone: %s", error)
            return
        with self._changed:
            if self._waiting is not None:
                shutil.rmtree(self._waiting, ignore_errors=True)
            self._waiting, self._step = snapshot, step
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Send no more than what is being sent: the results of the training follow."""
        with self._changed:
            if self._waiting is not None:
                shutil.rmtree(self._waiting, ignore_errors=True)
                self._waiting = None
        self.wait()

    def wait(self) -> None:
        """Wait until all that was to be sent is sent, or has failed."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                snapshot, self._waiting, step = self._waiting, None, self._step
                if snapshot is None:
                    self._thread = None
                    return
            try:
                self._publish(snapshot, step)
            except PipelineError as error:
                if not self._said:
                    logger.warning("The checkpoint is kept on this machine alone: %s", error)
                self._said = True
            finally:
                shutil.rmtree(snapshot, ignore_errors=True)

    def _publish(self, snapshot: Path, step: int) -> None:
        shared = chosen.find_shared_files()
        if shared is None:
            return
        files = [file.relative_to(snapshot).as_posix() for file in _files(snapshot)]
        value = {"step": step}
        shared.publish(f"{name_of(self._folder)}/{CHECKPOINT}", snapshot, files, value)


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in _LEFT_OUT and not file.name.startswith("."):
            yield file


def _link_files(folder: Path, snapshot: Path) -> None:
    """Link the files of a folder into another one; files that grow are copied."""
    for file in _files(folder):
        copy = snapshot / file.relative_to(folder)
        make_folder(copy.parent)
        if file.suffix not in _APPENDED:
            try:
                os.link(file, copy)
                continue
            except OSError:  # a file system without links
                pass
        shutil.copyfile(file, copy)
