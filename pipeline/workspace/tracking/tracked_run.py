"""One run in MLflow: opened, logged to, resumed, and closed whatever happens.

Everything goes through `MlflowClient` with the run's id; there is no active run. A run that a
SIGKILL left open is found dead by `liveness`, and closed as KILLED. Prefect's side, the flow runs
of killed processes, is `patchline.flows.closing.abandoned_prefect_runs`; both are called by
`patchline.flows.closing.close_runs`, which makes the two agree.
"""

from __future__ import annotations

import functools
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import RunError, StorageError, TrackingError
from patchline.pipeline.redaction import redact_values, without_credentials
from patchline.pipeline.workspace import chosen, lease, run_folders
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.file_locks import Liveness, hold_lock, try_lock
from patchline.pipeline.workspace.files.workspace_folder import REQUEST_FILE, make_folder
from patchline.pipeline.workspace.tracking import liveness, provenance, run_owner
from patchline.pipeline.workspace.tracking.store_tables import may_have_open_runs
from patchline.pipeline.workspace.tracking.tracking_store import (
    all_runs,
    client,
    store_exists,
    unreachable,
    use_store,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

HOST_TAG, FOLDER_TAG = liveness.HOST_TAG, liveness.FOLDER_TAG
FLOW_RUN_TAG = "prefect.flow_run_id"
FLOW_RUNS_TAG = "patchline.flow_runs"
"""Every flow run that worked on a run: the one that started it, and those that resumed it."""
DATA_ROOT_TAG = "patchline.data_root"
INITIAL_RUN_TAG = "patchline.initial_run_id"
"""The run that trained the initial weights."""
TEACHER_TAG, TEACHER_RUN_TAG = "patchline.teacher", "patchline.teacher_run_id"
"""The model whose predictions a run was trained towards, and the run that trained it."""
REGULARIZATION_TAG = "training.regularization"
"""Tag with the C of the head, for a run that trained nothing else."""
LICENSE_TAG = "patchline.initial_weights_license"
"""Tag with the license of published weights that the run, or one that it started from, began
with."""
SEEN_TAG = "patchline.seen_images"
"""What the initial weights have seen of the validation and test images, and what follows."""
_LONGEST_PARAM = 6000
_CLOSE_SECONDS = 10.0
_LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class TrackedRun:
    """A handle on one run: its id, its experiment's, and its folder on this machine."""

    run_id: str
    experiment_id: str
    folder: Path
    continued: bool = False
    """Whether an earlier attempt may have logged something."""


@dataclass(frozen=True)
class NewRun:
    """What is logged when a run is opened."""

    experiment: str
    name: str
    command: str
    """The command that the user ran, such as `patchline run`."""
    params: Mapping[str, str]
    tags: Mapping[str, str]
    request: str = ""
    """What is needed to resume it, saved in its folder before the run is opened."""


@contextmanager
def open_owned_run(
    config: RunConfig, runs: Path, tags: Mapping[str, str], request: str = ""
) -> Iterator[TrackedRun]:
    """Open a training run; see `open_run`.

    Args:
        config: the run's settings, resolved; its name is the experiment, its settings are the
            params.
        runs: the folder in which this run gets a folder.
        tags: additional tags.
        request: what is needed to resume the run.
    """
    name = str(config.name)
    new = NewRun(
        experiment=name,
        name="-".join([name, *config.model.names, f"seed{config.seed}"]),
        command="patchline run",
        params=config.flat(),
        tags={**provenance.plugin_tags(config), **tags},
        request=request,
    )
    with open_run(new, runs) as run:
        yield run


@contextmanager
def open_run(new: NewRun, runs: Path) -> Iterator[TrackedRun]:
    """Open a run, hold its owner's lock, and close it whatever happens.

    It ends FINISHED, FAILED after an error, KILLED after a signal.

    Args:
        new: what to log when it is opened.
        runs: the folder in which this run gets a folder.
    """
    store = client()
    folder = (runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}").resolve()
    with storage_errors(folder):
        make_folder(runs)
        folder.mkdir()
    with hold_lock(owner_lock(folder)), lease.hold_lease(folder.name):
        if new.request:
            write_text(folder / REQUEST_FILE, new.request)
            run_folders.send_file(folder / REQUEST_FILE)
        with _close_in_the_end(store, _create_run(store, new, folder), owner=1) as run:
            yield run


@contextmanager
def continue_run(
    run_id: str,
    folder: Path,
    params: Mapping[str, str],
    tags: Mapping[str, str],
    *,
    nested: bool = False,
) -> Iterator[TrackedRun]:
    """Reopen a run that failed or was killed; it is closed as in `open_run`.

    Args:
        run_id: the id of the run.
        folder: the folder of the run, which exists.
        params: the run's params, which are logged if its process was killed before they were.
        tags: additional tags.
        nested: whether this process owns the run that it is nested in, so that the process which
            opened it is known to be gone.

    Raises:
        RunError: if its owner is alive or may be, another process resumes it, or it has finished.
    """
    store = client()
    stored = store.get_run(run_id)
    if stored.info.status == "RUNNING" and not nested:
        owner = liveness.observe_owner(lambda: store.get_run(run_id))
        if owner is not Liveness.DEAD:
            raise RunError(not_resumable(stored, owner))
    with try_lock(owner_lock(folder), _LOCK_SECONDS) as is_owner:
        if not is_owner:
            raise RunError(not_resumable(stored, Liveness.ALIVE))
        number = run_owner.claim(store, stored)
        if store.get_run(run_id).info.status == "FINISHED":
            raise RunError(
                f"The run {run_id[:8]} has finished in the meantime. Nothing is left to do."
            )
        run = TrackedRun(run_id, stored.info.experiment_id, folder, continued=True)
        store.update_run(run_id, status="RUNNING")
        with _close_in_the_end(store, run, number):
            missing = {key: params[key] for key in params.keys() - stored.data.params.keys()}
            _log_params(store, run_id, missing)  # MLflow refuses to change one
            set_tags(run, {**_owner_tags(folder), **tags})
            with lease.hold_lease(folder.name):
                yield run


def not_resumable(run: Run, owner: Liveness) -> str:
    """Return why a run cannot be resumed whose owner is alive, or may be."""
    run_id, host = run.info.run_id, run.data.tags.get(HOST_TAG, "")
    where = f" on the machine {host}" if host and host != socket.gethostname() else ""
    if owner is Liveness.ALIVE:
        return (
            f"The run {run_id[:8]} is still running in another process{where}. Wait until it ends, "
            "or stop it."
        )
    return (
        f"The run {run_id[:8]} may still be running in another process{where}: it has no "
        "heartbeat, and its lock cannot be seen here. If it is gone, close the run with `python -c "
        f"\"import mlflow; mlflow.MlflowClient().set_terminated('{run_id}', 'KILLED')\"`, then "
        "resume it."
    )


@contextmanager
def _close_in_the_end(store: MlflowClient, run: TrackedRun, owner: int) -> Iterator[TrackedRun]:
    """Own a run while the block runs, and close it unless another process has taken it over."""
    beating = run_owner.begin(store, run.run_id, owner)
    status = "FAILED"
    try:
        yield run
        status = "FINISHED"
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        raise
    finally:
        if beating.end():
            _close(store, run, status)
    beating.check()


def check_owner(run: TrackedRun) -> None:
    """Make sure that this process still owns a run, before a step that cannot be taken back.

    Raises:
        TakenOverError: if another process has taken it over.
    """
    run_owner.check_now(run.run_id)


def _close(store: MlflowClient, run: TrackedRun, status: str) -> None:
    """Close a run; retry for ten seconds if the store does not answer."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    while True:
        try:
            end_run(store, run.run_id, run.experiment_id, status)
        except Exception as error:
            if time.monotonic() > deadline:
                raise unreachable(use_store(), error) from error
            time.sleep(0.5)
        else:
            return


def end_run(store: MlflowClient, run_id: str, experiment_id: str, status: str) -> None:
    """Set a run's logged models without files to FAILED, then close the run.

    The order matters: if this is interrupted, the run is still open and will be closed again.
    """
    from mlflow.entities import LoggedModelStatus

    pending = LoggedModelStatus.PENDING.to_int()  # MLflow compares numbers
    unfinished = f"source_run_id = '{run_id}' AND status = {pending}"
    for model in store.search_logged_models([experiment_id], filter_string=unfinished):
        store.finalize_logged_model(model.model_id, "FAILED")
    store.set_terminated(run_id, status)


def owner_lock(folder: Path) -> Path:
    """Return the file that the owner of a run holds a lock on."""
    return folder / liveness.LOCK_FILE


def log_data(
    run: TrackedRun,
    name: str,
    fingerprint: str,
    manifest_file: Path,
    context: str = "training",
    folder: str = "data",
) -> None:
    """Log data as a dataset of the run, which leads to its manifest, an artifact in a folder."""
    from mlflow.data import sources
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import DatasetInput, InputTag

    # MLflow makes this class when it runs, so type checkers cannot see it. It reads any store.
    uri = f"runs:/{run.run_id}/{folder}/{manifest_file.name}"
    source = sources.LocalArtifactDatasetSource(uri)  # type: ignore[attr-defined]
    dataset = MetaDataset(source, name=name, digest=fingerprint)  # type: ignore[abstract]
    entity = dataset._to_mlflow_entity()  # noqa: SLF001 - MlflowClient takes the entity only
    store = client()
    tag = InputTag("mlflow.data.context", context)
    store.log_inputs(run.run_id, [DatasetInput(entity, [tag])])
    store.log_artifact(run.run_id, str(manifest_file), folder)


def log_file(run: TrackedRun, file: Path, folder: str | None = None) -> None:
    """Log one file as an artifact of the run."""
    run_owner.check(run.run_id)
    client().log_artifact(run.run_id, str(file), folder)


def set_tags(run: TrackedRun, tags: Mapping[str, str]) -> None:
    """Set tags of the run; they are read back, so only an address loses its credentials."""
    from mlflow.entities import RunTag

    run_owner.check(run.run_id)
    client().log_batch(run.run_id, tags=[RunTag(*tag) for tag in _strip_credentials(tags).items()])


@contextmanager
def system_metrics(run: TrackedRun) -> Iterator[None]:
    """Log system metrics while the block runs."""
    monitor = _build_lasting_monitor()(
        run.run_id,
        sampling_interval=5,
        resume_logging=run.continued,
        tracking_uri=use_store(),
    )
    monitor.mlflow_logger.client = client()
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


@functools.cache
def _build_lasting_monitor() -> Callable[..., Any]:
    """Return MLflow's monitor of system metrics, which a server that is away does not end."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    class LastingMonitor(SystemMetricsMonitor):
        """It keeps what it could not send, and sends it with the next metrics."""

        def monitor(self) -> None:
            """Collect and send metrics until the training ends."""
            while not self._shutdown_event.is_set():
                super().monitor()  # type: ignore[no-untyped-call]
                self._shutdown_event.wait(self.sampling_interval)

        def publish_metrics(self, metrics: dict[str, float]) -> None:
            """Send metrics; the next ones get another step even if that fails."""
            step = self._logging_step
            try:
                super().publish_metrics(metrics)  # type: ignore[no-untyped-call]
            finally:
                self._logging_step = step + 1

    return LastingMonitor


def _create_run(store: MlflowClient, new: NewRun, folder: Path) -> TrackedRun:
    experiment = store.get_experiment_by_name(new.experiment)
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"The experiment '{new.experiment}' was deleted in MLflow. Restore it with `mlflow "
            f"experiments restore -x {experiment.experiment_id}`, or choose another --name."
        )
    experiment_id = (
        experiment.experiment_id if experiment else store.create_experiment(new.experiment)
    )
    tags = {
        **_owner_tags(folder),
        "mlflow.source.name": new.command,
        "mlflow.source.type": "LOCAL",
        **provenance.as_tags(),
        **new.tags,
    }
    run = store.create_run(experiment_id, tags=_strip_credentials(tags), run_name=new.name)
    _log_params(store, run.info.run_id, new.params)
    return TrackedRun(run.info.run_id, experiment_id, folder)


def _strip_credentials(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: without_credentials(value) for key, value in tags.items()}


def _log_params(store: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    entities = [Param(key, value[:_LONGEST_PARAM]) for key, value in redact_values(params).items()]
    store.log_batch(run_id, params=entities)


def _owner_tags(folder: Path) -> dict[str, str]:
    """Return the tags by which others recognise whether this process, the owner, is alive."""
    workspace = {}
    if shared := chosen.address():
        workspace[liveness.WORKSPACE_TAG] = str(shared)
        workspace[liveness.WORKSPACE_ID_TAG] = chosen.read_cached_id()
    return {
        HOST_TAG: socket.gethostname(),
        FOLDER_TAG: str(folder),
        liveness.LOCK_TAG: liveness.lock_identity(owner_lock(folder)),
        liveness.HEARTBEAT_TAG: run_owner.beat(),
        **workspace,
    }


# -- runs that a killed process left open -----------------------------------------------------


def close_abandoned() -> list[str]:
    """Close the runs whose owner is dead, and return their ids.

    A run whose owner is alive, or not known to be dead, is left alone.
    """
    if not store_exists() or not may_have_open_runs(use_store()):
        return []
    store = client()
    closed = []
    for run in list(all_runs("attributes.status = 'RUNNING'")):  # closed runs leave the search
        if HOST_TAG not in run.data.tags or liveness.of_run(run) is not Liveness.DEAD:
            continue
        with _guard(run) as is_free:
            # Read again: the run may have ended or been resumed, or its owner may have woken up.
            if is_free and _is_same(run, store.get_run(run.info.run_id)):
                end_run(store, run.info.run_id, run.info.experiment_id, "KILLED")
                closed.append(run.info.run_id)
    return closed


def _is_same(before: Run, now: Run) -> bool:
    """Return whether nobody has owned a run, or beaten for it, since it was found dead."""
    beats = (each.data.tags.get(liveness.HEARTBEAT_TAG) for each in (before, now))
    owners = (run_owner.number_of_owners(each) for each in (before, now))
    return now.info.status == "RUNNING" and len({*beats}) == 1 and len({*owners}) == 1


@contextmanager
def _guard(run: Run) -> Iterator[bool]:
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
