"""The lock on a registered model's aliases: one holder at a time.

On one machine it is a file lock, which the operating system releases when a process dies. MLflow
has no compare-and-swap, so a shared server needs a claim too: a tag with a unique key on the
registered model. Each process writes its claim first and then looks for others, so two processes
cannot both see none. A process that sees another claim withdraws its own and retries after a random
pause. A claim that exists for more than a minute, by the observer's clock, belongs to a dead
process and is removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline import local_services
from patchline.pipeline.errors import TrackingError
from patchline.pipeline.workers.host.private_folder import private_folder
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.file_locks import locked
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace.tracking.tracking_store import client, sqlite_file, use_store

if TYPE_CHECKING:
    from mlflow import MlflowClient


logger = logging.getLogger(__name__)

CLAIM_PREFIX = "patchline.claim."
_LEASE_SECONDS = 60.0
_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = (0.1, 1.0)


@contextmanager
def machine_lock(name: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a registered model among the processes of this machine.

    Args:
        name: of the registered model.
        on_wait: called once if another process holds the lock.

    Raises:
        StorageError: if the lock file cannot be written.
    """
    file = _lock_file(name)
    with storage_errors(file):
        make_folder(file.parent)
        file.touch(mode=0o600)
    with locked(file, on_wait):
        yield


@contextmanager
def claimed(name: str) -> Iterator[Callable[[], None]]:
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
    services = local_services.running()
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
    from mlflow.exceptions import MlflowException

    try:
        store.delete_registered_model_tag(name, key)
    except MlflowException as error:  # somebody else has removed it
        logger.debug("%s is gone already: %s", key, error)
