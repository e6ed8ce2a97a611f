"""One run in MLflow: open, log, close, and find those that a SIGKILL left open.

Everything goes through `MlflowClient` with the run's id; there is no active run.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from pipeline import provenance
from pipeline.atomic_files import storage_errors
from pipeline.config import RunConfig
from pipeline.errors import TrackingError
from pipeline.tracking_store import (
    client,
    store_exists,
    unreachable,
    use_store,
    without_credentials,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


logger = logging.getLogger(__name__)

HOST_TAG, FOLDER_TAG, HEARTBEAT_TAG = "patchline.host", "patchline.folder", "patchline.heartbeat"
FLOW_RUN_TAG = "prefect.flow_run_id"
DATA_ROOT_TAG = "patchline.data_root"
_LOCK_FILE = "owner.lock"
_LONGEST_PARAM = 6000
_LONG_GONE_SECONDS = 24 * 3600
_RETRY_SECONDS = 5.0
_FLUSH_SECONDS = 60.0
_HEARTBEAT_SECONDS = 60.0
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class TrackedRun:
    """A handle on one run: its id, its experiment's, and its folder on this machine."""

    run_id: str
    experiment_id: str
    folder: Path


@dataclass(frozen=True)
class NewRun:
    """What is written on a run when it is opened."""

    experiment: str
    name: str
    command: str
    """That the user gave, such as `patchline run`."""
    params: Mapping[str, str]
    tags: Mapping[str, str]


@contextmanager
def owned_run(config: RunConfig, runs: Path, tags: Mapping[str, str]) -> Iterator[TrackedRun]:
    """Open the run of a training; see `open_run`.

    Args:
        config: resolved; its name is the experiment, its settings are the params.
        runs: the folder that gets a folder for this run.
        tags: what else to write on the run.
    """
    name = str(config.name)
    new = NewRun(
        experiment=name,
        name="-".join([name, *config.model.names, f"seed{config.seed}"]),
        command="patchline run",
        params=config.flat(),
        tags={**provenance.plugin_tags(config), **tags},
    )
    with open_run(new, runs) as run:
        yield run


@contextmanager
def open_run(new: NewRun, runs: Path) -> Iterator[TrackedRun]:
    """Open a run, hold the lock that says it is alive, and close it whatever happens.

    It ends FINISHED, FAILED after an error, KILLED after a signal.

    Args:
        new: what to write on it.
        runs: the folder that gets a folder for this run.
    """
    store = client()
    folder = (runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}").resolve()
    with storage_errors(folder):
        folder.mkdir(parents=True)
        lock = FileLock(folder / _LOCK_FILE)
        lock.acquire()
    try:
        run = _create_run(store, new, folder)
        status = "FAILED"
        try:
            yield run
            status = "FINISHED"
        except BaseException as error:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
            raise
        finally:
            _close(store, run, status)
    finally:
        lock.release()


def _close(store: MlflowClient, run: TrackedRun, status: str) -> None:
    """Close a run and fail its models that have no files, waiting a little for a store away."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    while True:
        try:
            outputs = store.get_run(run.run_id).outputs
            for output in outputs.model_outputs if outputs else ():
                if str(store.get_logged_model(output.model_id).status) != "READY":
                    store.finalize_logged_model(output.model_id, "FAILED")
            store.set_terminated(run.run_id, status)
        except Exception as error:
            if time.monotonic() > deadline:
                raise unreachable(use_store(), error) from error
            time.sleep(0.5)
        else:
            return


def close_abandoned() -> list[str]:
    """Close the runs whose owner was killed, and return their ids.

    A run of this host is alive while its owner holds the lock in its folder. A run of another host
    is left alone unless its last heartbeat is a day old.
    """
    if not store_exists():
        return []
    store = client()
    closed = []
    experiments = [experiment.experiment_id for experiment in store.search_experiments()]
    for run in store.search_runs(experiments, "attributes.status = 'RUNNING'"):
        if HOST_TAG in run.data.tags and _abandoned(run):
            store.set_terminated(run.info.run_id, "KILLED")
            closed.append(run.info.run_id)
    return closed


class RunLog:
    """Send metrics and files to a run; an outage of the store delays them and loses none."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._client = client()
        self._metrics: list[Metric] = []
        self._files: list[Path] = []
        self._retry_after = 0.0
        self._last_heartbeat = 0.0

    def add_metrics(self, values: Mapping[str, float], step: int, seconds: float) -> None:
        """Queue metrics of one moment (seconds since the epoch), and send what is queued."""
        from mlflow.entities import Metric

        self._metrics += [
            Metric(key, float(value), int(seconds * 1000), step) for key, value in values.items()
        ]
        self.send()

    def add_file(self, file: Path) -> None:
        """Queue a file, and send what is queued."""
        self._files.append(file)
        self.send()

    def send(self) -> bool:
        """Try to send what is queued, at most every five seconds after a failure.

        Returns:
            Whether nothing is left.
        """
        now = time.monotonic()
        if now >= self._retry_after:
            try:
                self._send_all(now)
            except Exception as error:  # noqa: BLE001 - a store fails in many ways; all mean "later"
                logger.warning("MLflow does not answer; the training goes on: %s", error)
                self._retry_after = now + _RETRY_SECONDS
        return not (self._metrics or self._files)

    def flush(self) -> None:
        """Send everything, waiting for a store that is away for up to a minute.

        Raises:
            TrackingError: if it does not come back.
        """
        deadline = time.monotonic() + _FLUSH_SECONDS
        while not self.send():
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"{without_credentials(use_store())} has not answered for a minute, so "
                    f"{len(self._metrics)} metrics could not be logged. Start the server again."
                )
            time.sleep(0.5)

    def _send_all(self, now: float) -> None:
        if self._metrics:
            self._client.log_batch(self._run.run_id, metrics=self._metrics)
            self._metrics = []
        while self._files:
            self._client.log_artifact(self._run.run_id, str(self._files[0]))
            self._files.pop(0)
        if now - self._last_heartbeat >= _HEARTBEAT_SECONDS:
            self._client.set_tag(self._run.run_id, HEARTBEAT_TAG, str(int(time.time())))
            self._last_heartbeat = now


def log_data(
    run: TrackedRun, name: str, fingerprint: str, manifest_file: Path, context: str = "training"
) -> None:
    """Log the data's version as the data set of the run, and its manifest as an artifact."""
    from mlflow.data import sources
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import DatasetInput, InputTag

    # MLflow makes the class of a local folder while it runs, so no checker can see it.
    source = sources.LocalArtifactDatasetSource(str(manifest_file.parent))  # type: ignore[attr-defined]
    dataset = MetaDataset(source, name=name, digest=fingerprint)  # type: ignore[abstract]
    entity = dataset._to_mlflow_entity()  # noqa: SLF001 - MlflowClient takes the entity only
    store = client()
    tag = InputTag("mlflow.data.context", context)
    store.log_inputs(run.run_id, [DatasetInput(entity, [tag])])
    store.log_artifact(run.run_id, str(manifest_file), "data")


def log_file(run: TrackedRun, file: Path, folder: str | None = None) -> None:
    """Log one file as an artifact of the run."""
    client().log_artifact(run.run_id, str(file), folder)


def set_tags(run: TrackedRun, tags: Mapping[str, str]) -> None:
    """Write tags on the run."""
    from mlflow.entities import RunTag

    client().log_batch(run.run_id, tags=[RunTag(key, value) for key, value in tags.items()])


@contextmanager
def system_metrics(run: TrackedRun) -> Iterator[None]:
    """Log the machine's load while the block runs."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor: Any = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
        run.run_id, sampling_interval=5, tracking_uri=use_store()
    )
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


def run_page(run: TrackedRun) -> str:
    """Return the address of the run's page; for a local file, that of `mlflow ui`."""
    uri = use_store()
    server = without_credentials(uri) if uri.startswith("http") else "http://127.0.0.1:5000"
    return (
        f"{server}/#/experiments/{run.experiment_id}/runs/{run.run_id}"
        "?workflowType=machine_learning"
    )


def _create_run(store: MlflowClient, new: NewRun, folder: Path) -> TrackedRun:
    from mlflow.entities import Param

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
        HOST_TAG: socket.gethostname(),
        FOLDER_TAG: str(folder),
        HEARTBEAT_TAG: str(int(time.time())),
        "mlflow.source.name": new.command,
        "mlflow.source.type": "LOCAL",
        **provenance.as_tags(),
        **new.tags,
    }
    run = store.create_run(experiment_id, tags=tags, run_name=new.name)
    params = [Param(key, value[:_LONGEST_PARAM]) for key, value in new.params.items()]
    store.log_batch(run.info.run_id, params=params)
    return TrackedRun(run.info.run_id, experiment_id, folder)


def _abandoned(run: Run) -> bool:
    tags = run.data.tags
    if tags[HOST_TAG] != socket.gethostname():
        return time.time() - float(tags.get(HEARTBEAT_TAG, "0")) > _LONG_GONE_SECONDS
    lock_file = Path(tags.get(FOLDER_TAG, "")) / _LOCK_FILE
    if not lock_file.exists():
        return True
    try:
        with FileLock(lock_file, timeout=0):
            return True
    except Timeout:
        return False
