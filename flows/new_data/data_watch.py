"""Look at the watched folders, and start the run of one that has changed and is quiet again.

`look` is called every two seconds by the keeper of `patchline up`. What it has started a run for is
remembered in `.patchline/watches/NAME.json` after the start, and each start has a key of its own,
so that a kill in between neither loses a change nor starts a run twice. A run that is killed goes
on by itself.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic import ValidationError

from pipeline.files.atomic_files import write_text
from pipeline.files.folder_walk import walk_files
from pipeline.section import Section
from pipeline.workspace import WORKSPACE

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

logger = logging.getLogger(__name__)

KIND = "watch"
QUIET_SECONDS = 3.0
"""How long a folder has to stay the same before what is in it is taken for complete."""
_SHARE_OF_TIME = 0.05
"""Of one processor, at most, for looking at one folder."""
_SOON = dt.timedelta(minutes=1)
_UNFINISHED_SUFFIX = ".part"
_WAITING = ("Scheduled", "Late", "AwaitingConcurrencySlot")


@dataclass(frozen=True)
class Snapshot:
    """What a folder holds: a digest of the paths, sizes and dates, and the number of files."""

    digest: str
    files: int


class WatchState(Section):
    """What a run was started for, as it is remembered."""

    deployment_id: UUID
    folder: Path
    settings: str
    """Digest of the settings of the run."""
    digest: str
    """Of the folder."""
    files: int
    starts: int
    """How many runs were started for this watch."""
    flow_run_id: UUID
    at: str
    """When it was started: ISO 8601, UTC."""


@dataclass
class _Sight:
    """What this process remembers of a folder between two looks."""

    digest: str = ""
    since: float = 0.0
    not_before: float = 0.0
    trouble: str = ""
    settled: UUID | None = None
    """The run that was started for what is remembered, if it needs no other try."""


_sights: dict[UUID, _Sight] = {}


def look() -> None:
    """Start the run of each watch whose folder has changed, once the folder is quiet.

    While a run of the watch goes on or waits, none is started; the change is seen afterwards.

    Raises:
        OrchestrationError: if the Prefect server does not answer.
    """
    from flows.schedules.deployments import deployments

    watches = [each for each in deployments(KIND) if not each.paused]
    for gone in _sights.keys() - {each.id for each in watches}:
        del _sights[gone]
    for watch in watches:
        _look_at(watch, _sights.setdefault(watch.id, _Sight()))


def snapshot(folder: Path) -> Snapshot:
    """Return what a folder holds, linked folders included as a run reads them; nothing is opened.

    Hidden files and folders are passed over, and files that end in `.part`.

    Raises:
        OSError: if the folder itself cannot be read.
    """
    found: list[tuple[str, int, int]] = []

    def note_unreadable(below: str, error: OSError) -> None:
        if not below:
            raise error
        found.append((f"{below}/", -1, -1))

    for path, entry in walk_files(folder, note_unreadable):
        if entry.name.endswith(_UNFINISHED_SUFFIX):
            continue
        status = _status(entry)
        if status is not None:
            found.append((path, status.st_size, status.st_mtime_ns))
    digest = hashlib.sha256()
    for path, size, modified in sorted(found):
        digest.update(f"{path}\0{size}\0{modified}\n".encode("utf-8", "surrogateescape"))
    return Snapshot(digest.hexdigest(), len(found))


def cancel_waiting(deployment_id: UUID, own: UUID) -> None:
    """Cancel the runs of a watch that wait for their turn: the one that begins now stands for them.

    Call it before the data is read. What is asked for later waits, and runs.
    """
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelled

    with get_client(sync_client=True) as client:
        for flow_run in _unfinished(deployment_id):
            if flow_run.id != own and flow_run.state_name in _WAITING and not _is_later(flow_run):
                message = f"The run {own}, which begins now, reads the same data."
                client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)


def state_file(name: str) -> Path:
    """Return the file that remembers what the run of a watch was started for."""
    return WORKSPACE / "watches" / f"{name}.json"


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what a file says about itself, or of a link that leads nowhere what the link says."""
    for follow in (True, False):
        with contextlib.suppress(OSError):
            return entry.stat(follow_symlinks=follow)
    return None  # deleted while we looked


def _look_at(watch: DeploymentResponse, sight: _Sight) -> None:
    from flows.schedules.deployments import WATCH_FOLDER, name_of

    folder, name = Path(str(watch.labels[WATCH_FOLDER])), name_of(watch)
    began = time.monotonic()
    if began < sight.not_before:
        return
    try:
        now = snapshot(folder)
    except OSError as error:
        _say_once(
            sight, f"The folder {folder} of the watch '{name}' cannot be read ({error.strerror})."
        )
        return
    sight.not_before = began + (time.monotonic() - began) / _SHARE_OF_TIME
    if sight.trouble:
        logger.warning("The folder %s of the watch '%s' can be read again.", folder, name)
        sight.trouble = ""
    state = _remembered(name, watch.id)
    if state is not None and (state.digest, state.settings) == (now.digest, _settings(watch)):
        _see_to_it(sight, state.flow_run_id)
        return
    if sight.digest != now.digest:
        sight.digest, sight.since = now.digest, began
    if began - sight.since >= QUIET_SECONDS and not _goes_on(watch.id):
        _start(watch, name, folder, now, state)


def _see_to_it(sight: _Sight, flow_run_id: UUID) -> None:
    """Let the run go on that the last change has started, if it was interrupted.

    One that failed is left alone: with the same images it would fail again.
    """
    from prefect.exceptions import ObjectNotFound

    from flows.failures import was_interrupted
    from flows.prefect_client import asking
    from flows.schedules import second_tries

    if sight.settled == flow_run_id:
        return
    with asking() as client:
        try:
            over = second_tries.go_on(client, flow_run_id, was_interrupted)
        except ObjectNotFound:  # somebody deleted it
            over = True
    if over:
        sight.settled = flow_run_id


def _start(
    watch: DeploymentResponse, name: str, folder: Path, now: Snapshot, state: WatchState | None
) -> None:
    from flows.notifications import events
    from flows.schedules.deployments import start

    starts = (state.starts if state else 0) + 1
    settings = _settings(watch)
    key = f"{watch.id}-{starts}-{now.digest[:16]}-{settings[:16]}"
    flow_run_id = start(watch.id, idempotency_key=key)
    remembered = WatchState(
        deployment_id=watch.id,
        folder=folder,
        settings=settings,
        digest=now.digest,
        files=now.files,
        starts=starts,
        flow_run_id=flow_run_id,
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    write_text(state_file(name), remembered.model_dump_json(indent=2))
    facts = {"name": name, "folder": folder, "files": now.files, "flow_run_id": flow_run_id}
    events.emit(events.DATA_CHANGED, f"patchline.watch.{name}", facts)
    logger.info("The folder %s of the watch '%s' has changed; its run is started.", folder, name)


def _remembered(name: str, deployment_id: UUID) -> WatchState | None:
    """Return what is remembered; nothing if the watch was removed and created anew."""
    try:
        state = WatchState.model_validate_json(state_file(name).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return state if state.deployment_id == deployment_id else None


def _settings(watch: DeploymentResponse) -> str:
    text = json.dumps(watch.parameters, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _goes_on(deployment_id: UUID) -> bool:
    return any(not _is_later(flow_run) for flow_run in _unfinished(deployment_id))


def _is_later(flow_run: FlowRun) -> bool:
    """Return whether somebody has put a run off to a later time."""
    due = flow_run.next_scheduled_start_time
    waits = flow_run.state_name == "Scheduled"
    return waits and due is not None and due > dt.datetime.now(dt.UTC) + _SOON


def _unfinished(deployment_id: UUID) -> list[FlowRun]:
    from prefect.client.schemas.objects import StateType

    from flows.prefect_client import asking, flow_runs

    types = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    own = {"deployment_id": {"any_": [deployment_id]}}
    with asking() as client:
        return flow_runs(client, {**own, "state": {"type": {"any_": types}}})


def _say_once(sight: _Sight, trouble: str) -> None:
    if sight.trouble != trouble:
        sight.trouble = trouble
        logger.warning("%s Until it can be read, nothing is started.", trouble)
