"""One run in MLflow, on real stores."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import StorageError, TrackingError
from patchline.pipeline.files.file_locks import locked
from patchline.pipeline.registry import registration
from patchline.pipeline.tracking import (
    abandoned_mlflow_runs,
    exactly_once_metrics,
    liveness,
    tracked_run,
    tracking_store,
)
from tests.patience import patient

CONFIG = RunConfig(name="roses")


class Server:
    """An MLflow server on loopback that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}",
             "--artifacts-destination", str(self.folder / "artifacts")],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            # Jobs are for language models, and take eight processes.
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )  # fmt: skip
        deadline = time.monotonic() + patient(180)
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=patient(10)):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        pytest.fail("the MLflow server did not start")

    def stop(self) -> None:
        """Stop the server with everything that it started."""
        if self.process and self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()


@pytest.fixture
def server(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a running MLflow server that is this test's store."""
    shutil.copy(empty_store, tmp_path / "server.db")
    started = Server(tmp_path)
    started.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", started.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    yield started
    started.stop()


def _killed(folder: Path) -> dict[str, str]:
    """Return the tags of a run that was killed, after which its lock is free."""
    lock = tracked_run.owner_lock(folder)
    with locked(lock):
        held = liveness.lock_identity(lock)
    return {
        tracked_run.HOST_TAG: "whatever",
        tracked_run.FOLDER_TAG: str(folder),
        liveness.LOCK_TAG: held,
    }


def _history(run: tracked_run.TrackedRun, key: str) -> list[tuple[int, float]]:
    metrics: list[Any] = tracking_store.client().get_metric_history(run.run_id, key)
    return [(metric.step, metric.value) for metric in metrics]


def test_an_outage_of_the_server_delays_metrics_and_loses_none(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is logged while the server is away arrives when it is back, each value once."""
    monkeypatch.setattr(exactly_once_metrics, "_RETRY_SECONDS", 0.0)
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"not really")
    with tracked_run.owned_run(CONFIG, tmp_path / "runs", {}) as run:
        log = exactly_once_metrics.MetricSender(run)
        log.add_metrics({"loss": 3.0}, step=1, seconds=1.0)
        server.stop()
        log.add_metrics({"loss": 2.0}, step=2, seconds=2.0)
        log.add_file(picture)
        assert not log.send()
        server.start()
        log.add_metrics({"loss": 1.0}, step=3, seconds=3.0)
        log.flush()
        assert _history(run, "loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]
        files = [file.path for file in tracking_store.client().list_artifacts(run.run_id)]
        assert files == ["picture.png"]


def test_a_store_that_does_not_answer_is_named_without_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sentence has the address, but neither user nor password."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://anna:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1:9") as raised:
        tracking_store.client()
    assert "secret" not in str(raised.value)
    assert "anna" not in str(raised.value)


@pytest.mark.slow
def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the question and stays silent ends in a sentence after the limit."""
    limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": 1, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 0}
    monkeypatch.setattr(tracking_store, "_FIRST_ANSWER", limits)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "900")  # would be waited for
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://anna:secret@{address}")
        with pytest.raises(TrackingError) as raised:
            tracking_store.client()
    assert f"http://{address} cannot be used (it does not answer)" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "900"


def test_the_relative_default_store_becomes_absolute(tmp_path: Path) -> None:
    """Another process with another working directory finds the same store."""
    assert tracking_store.use_store() == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert os.environ["MLFLOW_TRACKING_URI"] == tracking_store.use_store()


@pytest.mark.usefixtures("own_store")
@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")],
)
def test_a_run_ends_as_what_happened(
    tmp_path: Path, error: type[BaseException] | None, status: str
) -> None:
    """A run ends FINISHED, FAILED after an error, KILLED after an interruption."""
    opened = []
    expected = pytest.raises(error) if error else contextlib.nullcontext()
    with expected, tracked_run.owned_run(CONFIG, tmp_path / "runs", {"note": "x"}) as run:
        opened.append(run)
        model = registration.logged_model(run, "roses")
        if error:
            raise error
        tracking_store.client().finalize_logged_model(model, "READY")
    store = tracking_store.client()
    found = store.get_run(opened[0].run_id)
    assert found.info.status == status
    assert found.data.tags["note"] == "x"
    assert found.data.params["model.name"] == "vit"
    assert str(store.get_logged_model(model).status) == ("FAILED" if error else "READY")


@pytest.mark.usefixtures("own_store")
def test_a_model_that_was_only_begun_fails_with_its_run(tmp_path: Path) -> None:
    """Also if the run does not list it yet: it was stopped, or killed, right after it was made."""
    store = tracking_store.client()
    begun = []

    def begin_and_stop() -> None:
        with tracked_run.owned_run(CONFIG, tmp_path / "runs", {}) as run:
            begun.append(store.create_logged_model(run.experiment_id, source_run_id=run.run_id))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin_and_stop()
    experiment = begun[0].experiment_id
    gone = tmp_path / "runs" / "gone"
    gone.mkdir()
    killed = store.create_run(experiment, tags=_killed(gone))
    begun.append(store.create_logged_model(experiment, source_run_id=killed.info.run_id))
    assert abandoned_mlflow_runs.close_abandoned() == [killed.info.run_id]
    found = [store.get_logged_model(each.model_id).status for each in begun]
    assert [str(status) for status in found] == ["FAILED", "FAILED"]


@pytest.mark.usefixtures("own_store")
def test_a_run_is_found_among_more_experiments_than_a_page_holds(tmp_path: Path) -> None:
    """MLflow lists a thousand experiments at once."""
    store = tracking_store.client()
    oldest = store.create_experiment("oldest")
    wanted = store.create_run(oldest).info.run_id
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(experiments)")]
        copied = ", ".join(
            {"experiment_id": "n + 1000", "name": "'n' || n", "last_update_time": "1e15 + n"}.get(
                column, column
            )
            for column in columns
        )
        numbers = "SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT 1200"
        database.execute(
            f"WITH RECURSIVE numbers(n) AS ({numbers}) INSERT INTO experiments "  # noqa: S608 - the names are MLflow's
            f"SELECT {copied} FROM experiments, numbers WHERE experiment_id = ?",
            (int(oldest),),
        )
    found = tracking_store.all_runs("attributes.status = 'RUNNING'")
    assert [run.info.run_id for run in found] == [wanted]


@pytest.mark.usefixtures("own_store")
def test_only_runs_whose_owner_is_dead_are_closed(tmp_path: Path) -> None:
    """A run whose lock is free is closed; one that is held or cannot be seen is left alone."""
    store = tracking_store.client()
    with tracked_run.owned_run(CONFIG, tmp_path / "runs", {}) as alive:
        experiment = alive.experiment_id
        gone = tmp_path / "runs" / "gone"
        gone.mkdir()
        abandoned = store.create_run(experiment, tags=_killed(gone))
        deleted = store.create_run(
            experiment, tags={**_killed(gone), tracked_run.FOLDER_TAG: str(tmp_path / "deleted")}
        )
        elsewhere = store.create_run(
            experiment,
            tags={tracked_run.HOST_TAG: "another-host", liveness.HEARTBEAT_TAG: "1"},
        )
        foreign = store.create_run(experiment)
        assert abandoned_mlflow_runs.close_abandoned() == [abandoned.info.run_id]
        for run_id in (alive.run_id, *(r.info.run_id for r in (deleted, elsewhere, foreign))):
            assert store.get_run(run_id).info.status == "RUNNING"
        assert store.get_run(abandoned.info.run_id).info.status == "KILLED"


@pytest.mark.usefixtures("own_store")
def test_a_deleted_experiment_of_the_name_is_said(tmp_path: Path) -> None:
    """MLflow keeps the name of a deleted experiment; the sentence says how to get it back."""
    store = tracking_store.client()
    store.delete_experiment(store.create_experiment("roses"))
    with (
        pytest.raises(TrackingError, match="mlflow experiments restore"),
        tracked_run.owned_run(CONFIG, tmp_path / "runs", {}),
    ):
        pass


def test_processes_that_meet_a_new_store_create_it_once(tmp_path: Path) -> None:
    """Two processes that start together on a new SQLite file both get to use it."""
    script = (
        "from patchline.pipeline.tracking import tracking_store\n"
        "tracking_store.client().search_experiments()\n"
    )
    together = [subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) for _ in range(2)]
    assert [process.wait(patient(240)) for process in together] == [0, 0]


def test_reading_from_a_folder_without_a_store_makes_none(tmp_path: Path) -> None:
    """Closing abandoned runs in a fresh folder leaves it as it was."""
    assert abandoned_mlflow_runs.close_abandoned() == []
    assert not list(tmp_path.iterdir())


def test_a_store_that_may_not_be_made_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SQLite store below something that is no folder is answered with its path."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/file/mlflow.db")
    with pytest.raises((StorageError, TrackingError), match=r"mlflow\.db"):
        tracking_store.client()
