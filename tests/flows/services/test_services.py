"""`patchline up`, with real servers: what it starts, what it survives and what it says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from patchline.flows import prefect_session
from patchline.flows.services import mlflow_server, service_processes
from patchline.pipeline import local_services
from patchline.pipeline.workspace.tracking import addresses, tracking_store
from patchline.pipeline.workspace.tracking.team_stores import TeamStores
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from tests.conftest import Finished, Run, patchline_here
from tests.flows.services.local_servers import Servers, page, recorded_services, serving
from tests.flows.training.runs import TINY
from tests.free_ports import free_port
from tests.patience import patient, until
from tests.pipeline.registry.serving.served import Serving, png, wait_for_version

_ALLOCATING = """
import gc, threading, time
from patchline.flows.prefect_api.temporary_server import collect_in_own_thread

class Cycle:
    def __init__(self):
        self.own = self
        self.weight = [[] for _ in range(2000)]  # enough to set off an automatic collection
    def __del__(self):
        finalised.append(threading.current_thread().name)

finalised = []
collect_in_own_thread(0.05)
deadline = time.monotonic() + float({seconds})
while len(finalised) < 20 and time.monotonic() < deadline:
    Cycle()
    time.sleep(0.002)
print(len(finalised) >= 20, *sorted(set(finalised)))
"""


def test_two_at_once_start_one_set_of_servers_beside_taken_ports(
    started: tuple[Servers, list[Finished]],
) -> None:
    """One starts them and the other waits; both report the same, and which ports were taken."""
    servers, both = started
    first, second = (each.json for each in both)
    assert {first.pop("already_running"), second.pop("already_running")} == {True, False}
    for link in ("prefect_login_url", "mlflow_login_url"):
        assert first.pop(link) != second.pop(link)  # each works once
    assert first == second
    assert len(service_processes.members(servers.folder, service_processes.SUPERVISOR)) == 1
    for name, port in zip(("prefect_url", "mlflow_url"), servers.ports, strict=True):
        used = int(first[name].rpartition(":")[2])
        assert used != port
        for each in both:
            assert f"Port {port} is taken" in each.err
            assert f"uses port {used}" in each.err


def test_both_uis_are_served_on_loopback(servers: Servers) -> None:
    """Both pages come, Prefect's page asks the right address, and nobody else can connect."""
    assert "<html" in page(servers.state.prefect_url, servers.folder)
    assert "<html" in page(servers.state.mlflow_url, servers.folder)
    settings = page(f"{servers.state.prefect_url}/ui-settings", servers.folder)
    assert f'"api_url":"{servers.state.prefect_api_url}"' in settings
    for process in service_processes.members(servers.folder):
        listening = [each for each in process.net_connections() if each.status == "LISTEN"]
        assert {each.laddr[0] for each in listening} <= {"127.0.0.1"}


def test_the_other_commands_find_the_servers(servers: Servers) -> None:
    """The store, the session and the connection of a command lead to them."""
    assert tracking_store.use_store() == servers.state.mlflow_url
    of_user = os.environ["PREFECT_API_AUTH_STRING"]
    with prefect_session.connect() as url:
        assert os.environ["PREFECT_API_URL"] == url == servers.state.prefect_api_url
        assert os.environ["PREFECT_API_AUTH_STRING"] != of_user
    with prefect_session.server(), prefect_session.ready():
        assert os.environ["PREFECT_API_URL"] == url
    assert "PREFECT_API_URL" not in os.environ
    assert os.environ["PREFECT_API_AUTH_STRING"] == of_user


def test_what_is_killed_is_started_again(servers: Servers) -> None:
    """Another program takes its place; the log says so."""
    killed = servers.process("keeper")
    killed.kill()
    until(lambda: "was restarted" in servers.log("supervisor"), "nothing was restarted")
    keepers = partial(service_processes.members, servers.folder, "keeper")
    until(lambda: {each.pid for each in keepers()} - {killed.pid}, "no new process")
    assert servers.log("supervisor").count("was killed by SIGKILL") == 1


def test_a_damaged_state_is_written_again(servers: Servers) -> None:
    """The supervisor knows where the servers are, and the secret that they expect."""
    before, secret = servers.state, local_services.secret(servers.folder)
    local_services.state_file(servers.folder).write_text('{"folder": "/tm', encoding="utf-8")
    local_services.secret_file(servers.folder).unlink()
    until(lambda: local_services.secret(servers.folder) == secret, "the secret is gone")
    assert servers.state == before
    assert "was damaged and is written again" in servers.log("supervisor")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--prefect-port 5000", "port of its own"),
        ("--max-concurrent-runs 0", "1 or more"),
        ("--serve 'a b'", "is not a model reference"),
        ("--serve flowers --serve-port 5000", "port of its own"),
        ("--serve-port 8001", "nothing is started there without --serve."),
    ],
)
def test_wrong_flags_are_refused(flags: str, words: str, tmp_path: Path) -> None:
    """The exit code is 2, the sentence says what is wrong, and nothing is written."""
    done = patchline_here("up", *shlex.split(flags), cwd=tmp_path)
    assert (done.code, words in done.err) == (2, True), done.err
    assert not Path(".patchline").exists()


def test_a_configured_server_that_is_away_is_named(tmp_path: Path) -> None:
    """`up` starts nothing in the place of a server that the user has named."""
    url = f"http://127.0.0.1:{free_port()}"
    done = patchline_here("up", cwd=tmp_path, env={"MLFLOW_TRACKING_URI": url})
    assert done.code == 1
    assert url in done.err
    assert "MLFLOW_TRACKING_URI" in done.err
    assert not service_processes.members(tmp_path)


def test_garbage_is_collected_by_a_thread_of_its_own() -> None:
    """It cannot stop the event loop: the thread that allocates finalises no cycle."""
    program = _ALLOCATING.format(seconds=patient(20))
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.startswith("True Thread-")


def test_state_that_a_dead_supervisor_left_is_not_believed(tmp_path: Path) -> None:
    """Without the supervisor's lock the file says nothing, and MLflow is the plain file."""
    recorded_services(tmp_path)
    local_services.supervisor_lock().touch()
    assert local_services.find_running() is None
    assert tracking_store.use_store() == f"sqlite:///{tmp_path / 'mlflow.db'}"


def test_the_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """There, the model server had fields of its own, which were empty without it."""
    now = recorded_services(tmp_path)
    file = local_services.state_file(tmp_path)
    values = json.loads(file.read_text(encoding="utf-8"))
    del values["of_tools"]
    for model, url in ((None, None), ("flowers", "http://127.0.0.1:8000")):
        file.write_text(json.dumps({**values, "serve": model, "serve_url": url}), encoding="utf-8")
        state = local_services.read_state(tmp_path)
        assert state is not None
        of_tools = {key: (each.argument, each.url) for key, each in state.of_tools.items()}
        assert of_tools == ({"serve": (model, url)} if model else {})
        assert state.model_copy(update={"of_tools": {}}) == now


def test_settings_for_other_mlflow_servers_do_not_reach_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Allowed hosts would make it refuse its own clients; what is for other libraries stays."""
    foreign = {
        "MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow.corp",
        "MLFLOW_STATIC_PREFIX": "/team",
        "MLFLOW_ENABLE_WORKSPACES": "true",
        "_MLFLOW_SERVER_ARTIFACTS_ONLY": "true",
    }
    kept = {"MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "5", "AWS_PROFILE": "team"}
    for name, value in (foreign | kept).items():
        monkeypatch.setenv(name, value)
    environment = mlflow_server.environment("sqlite:////x/mlflow.db")
    assert environment.items() >= kept.items()
    assert not foreign.keys() & environment.keys()
    from mlflow.server import constants  # takes a second

    direct = TeamStores(artifacts="s3://bucket", artifact_access="direct")
    root = {constants.ARTIFACT_ROOT_ENV_VAR: "s3://bucket"}
    assert mlflow_server.artifact_environment(direct) == root


@pytest.mark.slow
def test_a_stuck_server_is_replaced_and_a_killed_supervisor_leaves_nothing(
    servers: Servers,
) -> None:
    """It comes back at the same address. After SIGKILL of the supervisor its processes end.

    `up` then works.
    """
    stuck = servers.process("mlflow_server")
    stuck.suspend()
    until(lambda: not stuck.is_running(), "it was not replaced", seconds=300)
    assert "has not answered for" in servers.log("supervisor")
    health = f"{servers.state.mlflow_url}/health"
    until(lambda: local_services.answers(health), "it does not answer again")
    os.kill(servers.state.pid, signal.SIGKILL)
    until(lambda: not service_processes.members(servers.folder), "processes are left", pause=1)
    until(lambda: local_services.find_running(servers.folder) is None, "they look alive")
    assert servers.up().json["already_running"] is False


@pytest.mark.slow
def test_runs_before_and_during_are_one_history_whose_champion_is_served(
    finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was run before `up` is in its servers; what was run meanwhile is there after `down`.

    A model is served through its MLflow server, and follows its alias until `down` ends it.
    """
    folder, port = tmp_path / "workspace", free_port()
    shutil.copytree(finished_run.folder, folder)
    (folder / "prefect.db").rename(folder / ".patchline/prefect.db")
    monkeypatch.chdir(folder)
    with serving(folder, "--serve", "photos", "--serve-port", str(port)) as servers:
        server = Serving(subprocess.Popen(["true"], text=True), port, {}, folder)
        assert server.predict(png(1)).json["version"] == "1"
        done = servers.run("run photos", *TINY.split(), "--json")
        assert done.code == 0, done.err
        assert done.json["tracking_uri"] == servers.state.mlflow_url
        store, newest = tracking_store.client(), done.json["run_id"]
        known = {each.run_id for each in store.search_model_versions("name='photos'")}
        assert known == {finished_run.summary["run_id"], newest}
        with prefect_session.connect(), get_client(sync_client=True) as client:
            states = [run.state_name for run in client.read_flow_runs()]
            summaries = ArtifactFilter(key=ArtifactFilterKey(any_=["summary"]))
            verdicts = [str(each.data) for each in client.read_artifacts(artifact_filter=summaries)]
        assert states == ["Completed"] * 2
        run = TrackedRun(newest, store.get_run(newest).info.experiment_id, folder)
        report = f"[Report]({servers.state.mlflow_url}/{addresses.report_path(run)})"
        assert sum(report in verdict for verdict in verdicts) == 1
        store.set_registered_model_alias("photos", "champion", "2")
        wait_for_version(server, "2")
        again = servers.up("--serve", "other")
        assert again.code == 1
        assert "already running with --serve photos" in again.err
        servers.process("tool_service").kill()
        until(
            lambda: local_services.answers(f"http://127.0.0.1:{port}/readyz"),
            "it was not started again",
        )
    assert not local_services.answers(f"http://127.0.0.1:{port}/healthz")
    image = next((folder / "photos").rglob("*.png"))
    for version in (1, 2):
        assert servers.run("predict", f"photos/{version}", str(image)).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"), [("Prefect", ".patchline/prefect.db"), ("MLflow", "mlflow.db")]
)
def test_a_database_of_a_newer_version_is_named(tmp_path: Path, name: str, place: str) -> None:
    """`up` ends with 1 and a sentence, leaves the database as it is, and leaves no process."""
    servers, file = Servers(tmp_path), tmp_path / place
    file.parent.mkdir(exist_ok=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('ffffffffffff')")
    done = servers.up()
    assert done.code == 1
    assert name in (said := done.err.splitlines()[-1])
    assert file.name in said or "ffffffffffff" in said
    assert "Traceback" not in done.err
    servers.assert_gone()
