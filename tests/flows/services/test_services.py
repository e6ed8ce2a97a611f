"""`patchline up` and `patchline down`, with real servers."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from patchline.flows import prefect_session
from patchline.flows.services import mlflow_server, service_processes
from patchline.flows.services.startup_plan import Plan
from patchline.flows.services.supervisor import Supervisor
from patchline.pipeline import local_login, local_services
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.tracking import tracking_store
from tests.conftest import Finished, patchline, write_photos
from tests.flows.conftest import Command
from tests.flows.services.local_servers import (
    Servers,
    free_port,
    mlflow_client,
    page,
    recorded_services,
    until,
)
from tests.patience import patient


def test_two_at_once_start_one_set_of_servers(started: tuple[Servers, list[Finished]]) -> None:
    """Of two commands one starts the servers and the other waits; both report the same."""
    first, second = (each.json for each in started[1])
    assert {first.pop("already_running"), second.pop("already_running")} == {True, False}
    for link in ("prefect_login_url", "mlflow_login_url"):
        assert first.pop(link) != second.pop(link)  # each works once
    assert first == second
    assert len(service_processes.members(started[0].folder, service_processes.SUPERVISOR)) == 1


def test_a_port_that_is_taken_is_named_and_the_next_is_used(
    started: tuple[Servers, list[Finished]],
) -> None:
    """The servers listen elsewhere, and the command says which port was taken."""
    servers, both = started
    for name, port in zip(("prefect_url", "mlflow_url"), servers.ports, strict=True):
        used = int(both[0].json[name].rpartition(":")[2])
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


def test_a_second_up_finds_what_runs(servers: Servers) -> None:
    """It starts nothing, prints the same addresses and ends with 0."""
    before = servers.state
    done = servers.up()
    assert done.code == 0
    assert done.json["already_running"] is True
    assert done.json["mlflow_url"] == before.mlflow_url
    assert servers.state == before


def test_the_other_commands_find_the_servers(servers: Servers) -> None:
    """The store, the session and the connection of a command lead to them."""
    assert tracking_store.use_store() == servers.state.mlflow_url
    of_user = os.environ["PREFECT_API_AUTH_STRING"]
    with prefect_session.connected() as url:
        assert os.environ["PREFECT_API_URL"] == url == servers.state.prefect_api_url
        assert os.environ["PREFECT_API_AUTH_STRING"] != of_user
    with prefect_session.server(), prefect_session.ready():
        assert os.environ["PREFECT_API_URL"] == url
    assert "PREFECT_API_URL" not in os.environ
    assert os.environ["PREFECT_API_AUTH_STRING"] == of_user


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("mlflow", "mlflow_server"),
        pytest.param("prefect", "prefect_server", marks=pytest.mark.slow),
        pytest.param("runner", "runner", marks=pytest.mark.slow),
        pytest.param("keeper", "keeper", marks=pytest.mark.slow),
    ],
)
def test_what_is_killed_is_started_again(servers: Servers, name: str, module: str) -> None:
    """A server comes back at the same address, another program comes back; the log says so."""
    addresses = {"mlflow": "/health", "prefect": "/api/health"}
    killed = servers.process(module)
    killed.kill()
    until(lambda: "was restarted" in servers.log("supervisor"), "nothing was started again")
    until(
        lambda: (
            {each.pid for each in service_processes.members(servers.folder, module)} - {killed.pid}
        ),
        "no new process",
    )
    assert "was killed by SIGKILL" in servers.log("supervisor")
    if name in addresses:
        base = servers.state.mlflow_url if name == "mlflow" else servers.state.prefect_url
        until(lambda: local_services.answers(base + addresses[name]), f"{name} does not answer")


def test_a_damaged_state_is_written_again(servers: Servers) -> None:
    """The supervisor knows where the servers are, and the secret that they expect."""
    before, secret = servers.state, local_login.secret(servers.folder)
    local_services.state_file(servers.folder).write_text('{"folder": "/tm', encoding="utf-8")
    local_login.secret_file(servers.folder).unlink()
    until(lambda: local_login.secret(servers.folder) == secret, "the secret is gone")
    assert servers.state == before
    assert "was damaged and is written again" in servers.log("supervisor")


def test_without_servers_a_connection_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The sentence names the command that starts them."""
    assert local_services.running(tmp_path) is None
    with pytest.raises(OrchestrationError, match="patchline up"), prefect_session.connected():
        pass


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--prefect-port", "0"), ("--prefect-port 0", "65535")),
        (("--mlflow-port", "65536"), ("--mlflow-port 65536", "65535")),
        (("--prefect-port", "5000"), ("both 5000", "port of its own")),
        (("--max-concurrent-runs", "0"), ("--max-concurrent-runs 0", "1 or more")),
    ],
    ids=" ".join,
)
def test_a_wrong_number_is_refused(
    run_here: Command, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """The exit code is 2, the sentence names the value and the rule, and nothing is written."""
    code, _, said = run_here("up", *flags)
    assert code == 2
    assert all(word in said for word in words), said
    assert not Path(".patchline").exists()


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_URI", "PREFECT_API_URL"])
def test_a_configured_server_that_is_away_is_named(tmp_path: Path, variable: str) -> None:
    """`up` starts nothing in the place of a server that the user has named."""
    url = f"http://127.0.0.1:{free_port()}"
    env = {variable: f"{url}/api" if variable.startswith("PREFECT") else url}
    done = patchline("up", cwd=tmp_path, env=env)
    assert done.code == 1
    assert url in done.err
    assert variable in done.err
    assert not service_processes.members(tmp_path)


def test_state_that_a_dead_supervisor_left_is_not_believed(tmp_path: Path) -> None:
    """Without the supervisor's lock the file says nothing, and MLflow is the plain file."""
    file = local_services.state_file()
    file.parent.mkdir(parents=True)
    file.write_text(recorded_services(tmp_path).model_dump_json(), encoding="utf-8")
    local_services.supervisor_lock().touch()
    assert local_services.running() is None
    assert tracking_store.use_store() == f"sqlite:///{tmp_path / 'mlflow.db'}"


def test_a_supervisor_writes_nothing_where_its_folder_was_moved_from(tmp_path: Path) -> None:
    """The user may move it back; once it is, what was damaged is written again."""
    first, second = tmp_path / "first", tmp_path / "second"
    state = local_services.state_file(first)
    state.parent.mkdir(parents=True)
    plan = Plan(
        prefect_port=4200,
        mlflow_port=5000,
        max_concurrent_runs=1,
        prefect_api_url="http://127.0.0.1:1/api",
        mlflow_url="http://127.0.0.1:2",
        store="",
        notes=(),
    )
    supervisor = Supervisor(first, plan, first / "lifeline")
    supervisor._write_state()
    state.write_text("damaged", encoding="utf-8")
    first.rename(second)
    supervisor._restore_state()
    assert not first.exists()
    (first / ".patchline").mkdir(parents=True)
    supervisor._restore_state()
    assert not list((first / ".patchline").iterdir())
    shutil.rmtree(first)
    second.rename(first)
    supervisor._restore_state()
    assert local_services.read_state(first) == supervisor._services


def test_settings_for_other_mlflow_servers_do_not_reach_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Allowed hosts, for example, would make it refuse its own clients; its database keeps its own.

    What belongs to other libraries stays.
    """
    foreign = {
        "MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow.corp",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": "https://mlflow.corp",
        "MLFLOW_STATIC_PREFIX": "/team",
        "MLFLOW_ENABLE_WORKSPACES": "true",
        "_MLFLOW_SERVER_ARTIFACTS_ONLY": "true",
        "MLFLOW_TRACKING_URI": "https://mlflow.corp",
    }
    kept = {"MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "5", "AWS_PROFILE": "team"}
    for name, value in (foreign | kept).items():
        monkeypatch.setenv(name, value)
    environment = mlflow_server.environment("sqlite:////x/mlflow.db")
    assert environment.items() >= kept.items()
    assert foreign.keys() & environment.keys() == {"MLFLOW_TRACKING_URI"}
    assert environment["MLFLOW_TRACKING_URI"] == "sqlite:////x/mlflow.db"


@pytest.mark.slow
def test_a_killed_supervisor_leaves_nothing_and_the_next_up_starts(tmp_path: Path) -> None:
    """After SIGKILL of the supervisor its processes end by themselves; `up` then works."""
    servers = Servers(tmp_path)
    try:
        assert servers.up().code == 0
        assert len(service_processes.members(tmp_path)) == 5
        os.kill(servers.state.pid, signal.SIGKILL)
        deadline = time.monotonic() + patient(60)
        while service_processes.members(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert local_services.running(tmp_path) is None
        assert servers.up().json["already_running"] is False
        for process in service_processes.members(tmp_path):
            process.kill()
        assert servers.up().json["already_running"] is False
    finally:
        servers.down("--now")
    servers.assert_gone()


@pytest.mark.slow
def test_a_server_that_is_stuck_is_started_again(tmp_path: Path) -> None:
    """A server that lives but gives no answer is killed and replaced."""
    servers = Servers(tmp_path)
    try:
        assert servers.up().code == 0
        stuck = servers.process("mlflow_server")
        stuck.suspend()
        deadline = time.monotonic() + patient(300)
        while stuck.is_running():
            assert time.monotonic() < deadline
            time.sleep(1)
        assert "has not answered for" in servers.log("supervisor")
        health = f"{servers.state.mlflow_url}/health"
        until(lambda: local_services.answers(health), "it does not answer again")
    finally:
        servers.down("--now")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_runs_before_during_and_after_are_one_history(tmp_path: Path) -> None:
    """What was run before `up` is in both servers; what was run meanwhile is usable after `down`.

    Three training runs of one epoch, on the same photos: without servers, with them, without.
    """
    from prefect.client.orchestration import get_client

    write_photos(tmp_path / "photos", images=12)
    servers = Servers(tmp_path)

    def train(seed: int) -> Finished:
        flags = ("--preset", "none", "--training.epochs", "1", "--seed", str(seed), "--json")
        process = servers.begin("run", "photos", *flags)
        out, err = process.communicate(timeout=patient(600))
        assert process.returncode == 0, err
        return Finished(0, out, err)

    before = train(1)
    assert before.json["tracking_uri"].startswith("sqlite:")
    try:
        assert servers.up().code == 0
        during = train(2)
        assert during.json["tracking_uri"] == servers.state.mlflow_url
        known = mlflow_client(tmp_path).search_model_versions("name='photos'")
        assert {each.run_id for each in known} == {before.json["run_id"], during.json["run_id"]}
        os.chdir(tmp_path)
        with prefect_session.connected(), get_client(sync_client=True) as client:
            states = [run.state_type for run in client.read_flow_runs()]
        assert [str(state and state.value) for state in states] == ["COMPLETED"] * 2
    finally:
        servers.down("--now")
    shown = patchline("models", "photos", "--json", cwd=tmp_path).json["models"][0]["versions"]
    assert {str(each["version"]) for each in shown} == {"1", "2"}
    image = str(next((tmp_path / "photos").rglob("*.png")))
    for version in (1, 2):
        assert patchline("predict", f"photos/{version}", image, cwd=tmp_path).code == 0
    assert patchline("promote", "photos", "--version", "2", cwd=tmp_path).code in (0, 3)
    assert train(3).json["version"] == "3"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Prefect", "MLflow"])
def test_a_database_of_a_newer_version_is_named(tmp_path: Path, name: str) -> None:
    """`up` ends with 1 and a sentence, leaves the database as it is, and leaves no process."""
    servers = Servers(tmp_path)
    file = tmp_path / (".patchline/prefect.db" if name == "Prefect" else "mlflow.db")
    file.parent.mkdir(exist_ok=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('ffffffffffff')")
    done = servers.up()
    assert done.code == 1
    assert name in done.err.splitlines()[-1]
    assert file.name in done.err.splitlines()[-1] or "ffffffffffff" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    servers.assert_gone()
