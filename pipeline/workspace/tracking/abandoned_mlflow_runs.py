"""MLflow runs that a killed process left open: found dead by `liveness`, and closed as KILLED.

Prefect's side, the flow runs of killed processes, is
`patchline.flows.closing.abandoned_prefect_runs`. Both are called by
`patchline.flows.closing.close_runs`, which makes the two agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.file_locks import Liveness, try_lock
from patchline.pipeline.workspace.tracking import liveness, run_owner
from patchline.pipeline.workspace.tracking.liveness import HEARTBEAT_TAG, HOST_TAG
from patchline.pipeline.workspace.tracking.tracked_run import end_run
from patchline.pipeline.workspace.tracking.tracking_store import all_runs, client, store_exists

if TYPE_CHECKING:
    from mlflow.entities import Run


def close_abandoned() -> list[str]:
    """Close the runs whose owner is dead, and return their ids.

    A run whose owner is alive, or not known to be dead, is left alone.
    """
    if not store_exists():
        return []
    store = client()
    closed = []
    for run in list(all_runs("attributes.status = 'RUNNING'")):  # closed runs leave the search
        if HOST_TAG not in run.data.tags or liveness.of_run(run) is not Liveness.DEAD:
            continue
        with _guarded(run) as is_free:
            # Read again: the run may have ended or been resumed, or its owner may have woken up.
            if is_free and _is_same(run, store.get_run(run.info.run_id)):
                end_run(store, run.info.run_id, run.info.experiment_id, "KILLED")
                closed.append(run.info.run_id)
    return closed


def _is_same(before: Run, now: Run) -> bool:
    """Return whether nobody has owned a run, or beaten for it, since it was found dead."""
    beats = (each.data.tags.get(HEARTBEAT_TAG) for each in (before, now))
    owners = (run_owner.number_of_owners(each) for each in (before, now))
    return now.info.status == "RUNNING" and len({*beats}) == 1 and len({*owners}) == 1


@contextmanager
def _guarded(run: Run) -> Iterator[bool]:
    """Hold the owner's lock while the block runs, if it can be seen, so that nobody becomes owner.

    Yields:
        Whether no other process holds it.
    """
    lock_file = liveness.lock_of(run)
    if lock_file is None or liveness.of_lock_of(run) is not Liveness.DEAD:
        yield True  # found dead by its heartbeat; an owner that wakes up reopens its run
        return
    try:
        with try_lock(lock_file) as locked:
            yield locked
    except StorageError:  # the lock belongs to another user
        yield True
