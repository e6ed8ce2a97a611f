"""MLflow runs that a killed process left open: found by their free lock, and closed as KILLED.

Prefect's side, the flow runs of killed processes, is `flows.closing.abandoned_prefect_runs`. Both
are called by `flows.closing.close_runs`, which makes the two agree.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.files.file_locks import try_lock
from pipeline.tracking.tracked_run import (
    FOLDER_TAG,
    HEARTBEAT_TAG,
    HOST_TAG,
    end_run,
    owner_lock,
)
from pipeline.tracking.tracking_store import all_runs, client, store_exists

if TYPE_CHECKING:
    from mlflow.entities import Run

_LONG_GONE_SECONDS = 24 * 3600


def close_abandoned() -> list[str]:
    """Close the runs whose owner was killed, and return their ids.

    A run of this host is alive while its owner holds the lock in its folder. A run of another host
    is left alone unless its last heartbeat is a day old.
    """
    if not store_exists():
        return []
    store = client()
    closed = []
    for run in list(all_runs("attributes.status = 'RUNNING'")):  # closed runs leave the search
        if HOST_TAG not in run.data.tags:
            continue
        with _abandoned(run) as abandoned:
            # Checked again while the lock is held: the run may have ended or been resumed.
            if abandoned and store.get_run(run.info.run_id).info.status == "RUNNING":
                end_run(store, run.info.run_id, run.info.experiment_id, "KILLED")
                closed.append(run.info.run_id)
    return closed


@contextmanager
def _abandoned(run: Run) -> Iterator[bool]:
    """Yield whether a run's owner is gone; no process can become its owner during the block."""
    tags = run.data.tags
    if tags[HOST_TAG] != socket.gethostname():
        yield time.time() - float(tags.get(HEARTBEAT_TAG, "0")) > _LONG_GONE_SECONDS
        return
    lock_file = owner_lock(Path(tags.get(FOLDER_TAG, "")))
    if not lock_file.exists():
        yield True
        return
    with try_lock(lock_file) as locked:
        yield locked
