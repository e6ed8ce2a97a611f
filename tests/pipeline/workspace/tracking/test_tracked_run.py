"""One run in MLflow, on real stores."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from werkzeug.serving import make_server

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import TrackingError
from patchline.pipeline.registry import registration
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.tracking import (
    exactly_once_metrics,
    liveness,
    tracked_run,
    tracking_store,
)
from tests.free_ports import free_port
from tests.patience import patient

CONFIG = RunConfig(name="roses")


@contextmanager
def _serving(port: int) -> Iterator[None]:
    """Serve MLflow's store of this folder while the block runs."""
    from mlflow.server import app

    server = make_server("127.0.0.1", port, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _killed(folder: Path) -> dict[str, str]:
    """Return the tags of a run that was killed, after which its lock is free."""
    lock = tracked_run.owner_lock(folder)
    with hold_lock(lock):
        held = liveness.lock_identity(lock)
    return {
        tracked_run.HOST_TAG: "whatever",
        tracked_run.FOLDER_TAG: str(folder),
        liveness.LOCK_TAG: held,
    }


@pytest.mark.usefixtures("own_store")
def test_an_outage_of_the_server_delays_metrics_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is logged while the server is away arrives when it is back, each value once."""
    monkeypatch.setattr(exactly_once_metrics, "_RETRY_SECONDS", 0.0)
    open_store: Any = SqlAlchemyStore  # without annotations
    store = open_store(f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path / "mlruns"))
    monkeypatch.setattr("mlflow.server.handlers._tracking_store", store)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"not really")
    port = free_port()
    with contextlib.ExitStack() as run_block:
        with _serving(port):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
            run = run_block.enter_context(tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {}))
            log = exactly_once_metrics.MetricSender(run)
            log.add_metrics({"loss": 3.0}, step=1, seconds=1.0)
        log.add_metrics({"loss": 2.0}, step=2, seconds=2.0)
        log.add_file(picture)
        assert not log.send()
        with _serving(port):
            log.add_metrics({"loss": 1.0}, step=3, seconds=3.0)
            log.flush()
            client = tracking_store.client()
            history = client.get_metric_history(run.run_id, "loss")
            assert [(each.step, each.value) for each in history] == [(1, 3.0), (2, 2.0), (3, 1.0)]
            assert [each.path for each in client.list_artifacts(run.run_id)] == ["picture.png"]
            run_block.close()


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_that_does_not_answer_is_named_without_credentials(
    monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """Nothing listens, or the question is taken and never answered, which ends at a limit."""
    limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": 1, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 0}
    monkeypatch.setattr(tracking_store, "_FIRST_ANSWER", limits)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "900")  # would be waited for
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if silent:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://anna:secret@{address}")
        with pytest.raises(TrackingError, match=f"http://{address} cannot be used") as raised:
            tracking_store.client()
    assert ("does not answer" if silent else "nothing listens") in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "anna" not in str(raised.value)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "900"


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
    with expected, tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {"note": "x"}) as run:
        opened.append(run)
        model = registration.find_logged_model(run, "roses")
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
def test_only_runs_whose_owner_is_dead_are_closed(tmp_path: Path) -> None:
    """A run whose lock is free is closed; one that is held or cannot be seen is left alone.

    A model that the dead owner had only begun fails with its run.
    """
    store = tracking_store.client()
    with tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {}) as alive:
        experiment = alive.experiment_id
        gone = tmp_path / "runs" / "gone"
        gone.mkdir()
        tags = _killed(gone)
        abandoned = store.create_run(experiment, tags=tags).info.run_id
        begun = store.create_logged_model(experiment, source_run_id=abandoned)
        others = [
            {**tags, tracked_run.FOLDER_TAG: str(tmp_path / "deleted")},
            {tracked_run.HOST_TAG: "another-host", liveness.HEARTBEAT_TAG: "1"},
            {},
        ]
        left = [store.create_run(experiment, tags=each).info.run_id for each in others]
        assert tracked_run.close_abandoned() == [abandoned]
        for run_id in (alive.run_id, *left):
            assert store.get_run(run_id).info.status == "RUNNING"
        assert store.get_run(abandoned).info.status == "KILLED"
        assert str(store.get_logged_model(begun.model_id).status) == "FAILED"


def test_of_processes_that_meet_a_new_store_one_creates_it(tmp_path: Path) -> None:
    """Whoever comes second waits for the lock; reading alone makes no store."""
    assert tracked_run.close_abandoned() == []
    assert not list(tmp_path.iterdir())
    with ThreadPoolExecutor(1) as pool:
        with hold_lock(tmp_path / ".patchline/mlflow.lock"):
            opened = pool.submit(tracking_store.client)
            with pytest.raises(TimeoutError):
                opened.result(0.2)
            assert not (tmp_path / "mlflow.db").exists()
        assert opened.result(patient(60)).search_experiments()


@pytest.mark.usefixtures("own_store")
def test_a_deleted_experiment_of_the_name_is_said(tmp_path: Path) -> None:
    """MLflow keeps the name of a deleted experiment; the sentence says how to get it back."""
    store = tracking_store.client()
    store.delete_experiment(store.create_experiment("roses"))
    with (
        pytest.raises(TrackingError, match="mlflow experiments restore"),
        tracked_run.open_owned_run(CONFIG, tmp_path / "runs", {}),
    ):
        pass
