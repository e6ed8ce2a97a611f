"""`patchline up` with a team's stores: PostgreSQL and S3, real ones, and what many writers do."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import BotoCoreError

from patchline.flows.services import service_processes
from patchline.pipeline import local_services
from patchline.pipeline.errors import ServerAwayError
from patchline.pipeline.workers.host.system_errors import system_error
from patchline.pipeline.workspace.tracking import exactly_once_metrics
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.conftest import Finished, contents, patchline_here, write_photos
from tests.flows.services.buckets import administrator, keys_in
from tests.flows.services.local_servers import Servers, own_database, page, serving
from tests.flows.training.runs import TINY
from tests.free_ports import free_port
from tests.object_server import KEYS, ObjectServer
from tests.postgres_server import (
    PASSWORD,
    USER,
    PostgresServer,
    postgres_server,
    program,
)

pytestmark = pytest.mark.slow  # servers of their own
_BUCKET = "team-store"
_WRITERS, _STEPS = 32, 6


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, objects: ObjectServer
) -> Iterator[Servers]:
    """Start the servers of one folder on a new database and a bucket."""
    folder = tmp_path_factory.mktemp("team_stores")
    administrator(objects).create_bucket(Bucket=_BUCKET)
    postgres.sql(f"CREATE DATABASE team OWNER {USER}")
    credentials = {"PGPASSWORD": PASSWORD, **objects.environment}
    stores = ("--database", postgres.address("team"), "--artifacts", f"s3://{_BUCKET}/artifacts")
    with serving(folder, *stores, **credentials) as servers:
        servers.env = own_database()  # nothing but these servers needs the credentials
        yield servers


@pytest.fixture
def team(started: Servers, monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Return those servers; the working directory is their folder."""
    monkeypatch.chdir(started.folder)
    return started


def test_both_programs_use_the_database(team: Servers, postgres: PostgresServer) -> None:
    """Each has its tables in a schema of its own; nothing is in a file of the folder."""
    query = "SELECT table_schema, table_name FROM information_schema.tables"
    tables = postgres.sql(query, "team")
    assert ("mlflow", "runs") in tables
    assert ("prefect", "flow_run") in tables
    assert not [name for schema, name in tables if schema == "public"]
    assert not list(team.folder.glob("*.db"))
    assert not (team.folder / ".patchline/prefect.db").exists()


def test_the_credentials_are_shown_nowhere(team: Servers, postgres: PostgresServer) -> None:
    """They are on no command line, in no file of the folder, no output and on no page.

    The runner and the keeper use the servers, and so do the runs that they start.
    """
    commands = [" ".join(each.cmdline()) for each in service_processes.members(team.folder)]
    files = contents(team.folder)
    assert len(commands) == 5
    assert len(files) > 5
    again = team.up("--database", postgres.address("team"))
    assert again.json["already_running"]
    settings = page(f"{team.state.prefect_api_url}/admin/settings", team.folder)
    shown = [again.out, again.err, settings, *commands]
    shown += [content.decode(errors="replace") for content in files.values()]
    assert not [text for text in shown if PASSWORD in text or KEYS["AWS_SECRET_ACCESS_KEY"] in text]
    knowing = ("mlflow_server", "prefect_server", "runner", "keeper")
    has = ["PGPASSWORD" in team.process(name).environ() for name in knowing]
    assert has == [True, True, False, False]


def test_many_writers_and_watchers_lose_no_metric_and_write_none_twice(
    team: Servers, postgres: PostgresServer
) -> None:
    """32 runs log while others watch; the servers open no more connections than is documented."""
    store = client()
    experiment = store.create_experiment("writers")
    ended_all = threading.Event()
    opened: list[int] = []

    def watch(_: int) -> None:
        while not ended_all.is_set():
            store.search_runs([experiment], max_results=50)

    def count() -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'team'"
        while not ended_all.wait(0.1):
            opened.append(int(postgres.sql(query)[0][0]))

    def write(_: int) -> str:
        run = store.create_run(experiment)
        sender = MetricSender(TrackedRun(run.info.run_id, experiment, team.folder))
        for step in range(_STEPS):
            sender.add_metrics({"loss": 1 / (step + 1), "rate": 0.1}, step, time.time())
        sender.flush()
        return str(run.info.run_id)

    with ThreadPoolExecutor(_WRITERS + 5) as threads:
        watching = [threads.submit(watch, number) for number in range(4)]
        watching.append(threads.submit(count))
        try:
            runs = list(threads.map(write, range(_WRITERS)))
        finally:
            ended_all.set()
        for each in watching:
            each.result()
    for run_id in runs:
        history = store.get_metric_history(run_id, "loss")
        assert sorted(metric.step for metric in history) == list(range(_STEPS))
    assert 5 < max(opened) <= 45


def test_artifacts_are_transferred_by_the_server(team: Servers, objects: ObjectServer) -> None:
    """A client needs no keys of the bucket."""
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ
    store = client()
    run_id = store.create_run(store.create_experiment("artifacts")).info.run_id
    (team.folder / "note.txt").write_text("a note", encoding="utf-8")
    store.log_artifact(run_id, "note.txt", "notes")
    [key] = [key for key in keys_in(objects, _BUCKET) if key.endswith("note.txt")]
    assert key.startswith("artifacts/")
    assert f"{run_id}/artifacts/notes/" in key
    assert Path(store.download_artifacts(run_id, "notes/note.txt")).read_text("utf-8") == "a note"


def test_direct_artifacts_are_transferred_by_the_client_with_its_own_keys(
    team: Servers, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without usable keys that is one sentence, and what could not be sent is sent later."""
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    store = client()
    place = f"s3://{objects.new_bucket()}/direct"
    experiment = store.create_experiment("direct", artifact_location=place)
    run_id = store.create_run(experiment).info.run_id
    Path("direct.txt").write_text("direct", encoding="utf-8")
    sender = MetricSender(TrackedRun(run_id, experiment, team.folder))
    with monkeypatch.context() as wrong:
        wrong.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        wrong.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises((S3UploadFailedError, BotoCoreError)) as raised:
            store.log_artifact(run_id, "direct.txt")
        assert "The object store of the artifacts failed" in str(system_error(raised.value))
        sender.add_file(Path("direct.txt"))
        wrong.setattr(exactly_once_metrics, "_FLUSH_SECONDS", 0.0)
        with pytest.raises(ServerAwayError, match=r"The file direct\.txt could not be stored"):
            sender.flush()
    sender.flush()
    assert [item.path for item in store.list_artifacts(run_id)] == ["direct.txt"]


def test_an_outage_of_the_database_delays_metrics_and_loses_none(
    team: Servers, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent meanwhile waits; the servers need no restart."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    before = team.process("mlflow_server").pid
    store = client()
    experiment = store.create_experiment("outage")
    run_id = store.create_run(experiment).info.run_id
    sender = MetricSender(TrackedRun(run_id, experiment, team.folder))
    sender.add_metrics({"loss": 1.0}, 0, time.time())
    postgres.control("-m", "immediate", "stop")
    try:
        sender.add_metrics({"loss": 0.5}, 1, time.time())
        assert not sender.send()
        done = patchline_here("models", cwd=team.folder)
    finally:
        postgres.start()
    assert done.code == 1
    assert "The MLflow store" in done.err
    assert "Traceback" not in done.err
    sender.flush()
    steps = [metric.step for metric in store.get_metric_history(run_id, "loss")]
    assert steps == [0, 1]
    assert team.process("mlflow_server").pid == before


def test_other_stores_need_other_servers(team: Servers, postgres: PostgresServer) -> None:
    """A second `up` names those in use."""
    done = team.up("--database", postgres.address("another"))
    assert done.code == 1
    assert "already running with other stores" in done.err
    assert "patchline down" in done.err


def test_without_the_servers_a_command_says_what_to_start(
    team: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin another history in a file of the folder."""
    monkeypatch.setattr(local_services, "find_running", lambda *_: None)
    done = patchline_here("models", cwd=team.folder)
    assert (done.code, "patchline up" in done.err) == (1, True)
    assert not (team.folder / "mlflow.db").exists()


def test_a_team_continues_on_another_machine_from_its_backup(
    team: Servers,
    postgres: PostgresServer,
    objects: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As docs/how_to/backup.md says: `models`, `predict` and `run` work on the new servers.

    So does `predict` in the folder of a colleague who has what signs in to MLflow alone. The old
    servers are gone: this test is the last one that uses them.
    """
    write_photos(team.folder / "photos", images=8)
    training = ("run", "photos", "--name", "flowers", *TINY.split(), "--json")
    _ok(team.run(*training))
    team.down("--now")
    dump = str(tmp_path / "stores.dump")
    _execute("pg_dump", "--format=custom", f"--file={dump}", postgres.address("team"))
    s3, other_bucket = administrator(objects), objects.new_bucket()
    for key in keys_in(objects, _BUCKET):
        s3.copy_object(Bucket=other_bucket, Key=key, CopySource={"Bucket": _BUCKET, "Key": key})
        s3.delete_object(Bucket=_BUCKET, Key=key)
    restored = tmp_path / "restored"
    shutil.move(team.folder, restored)
    team.folder.mkdir()  # where nothing runs

    with postgres_server() as another:
        another.sql(f"CREATE DATABASE team OWNER {USER}")
        _execute("pg_restore", "--no-owner", f"--dbname={another.address('team')}", dump)
        postgres.sql("DROP DATABASE team")
        credentials = {"PGPASSWORD": PASSWORD, **objects.environment}
        artifacts = ("--artifacts", f"s3://{other_bucket}/artifacts")
        moved = ("--database", another.address("team"), *artifacts)
        with serving(restored, *moved, **credentials) as servers:
            servers.env = own_database()
            models = _ok(servers.run("models --json")).json["models"]
            assert [(each["name"], len(each["versions"])) for each in models] == [("flowers", 1)]
            image = str(next((restored / "photos").rglob("*.png")))
            _ok(servers.run("predict flowers@champion", image))
            again = _ok(servers.run(*training)).json
            assert (again["version"], again["reused"]["train"]) == (
                "2",
                models[0]["versions"][0]["run_id"],
            )

            monkeypatch.setenv("MLFLOW_TRACKING_URI", servers.state.mlflow_url)
            colleague = tmp_path / "colleague"
            colleague.mkdir()
            refused = patchline_here("models", cwd=colleague)
            assert (refused.code, "login.env" in refused.err) == (1, True), refused.err
            login = (restored / ".patchline/services/login.env").read_text(encoding="utf-8")
            for name, _, value in (word.partition("=") for word in shlex.split(login)):
                if name.startswith("MLFLOW_"):
                    monkeypatch.setenv(name, value)
            _ok(patchline_here("predict flowers/2", image, cwd=colleague))


def _ok(done: Finished) -> Finished:
    assert done.code == 0, done.err
    return done


def _execute(name: str, *arguments: str) -> None:
    """Run a program of PostgreSQL."""
    path = program(name) or shutil.which(name)
    given = {**os.environ, "PGPASSWORD": PASSWORD}
    subprocess.run([str(path), *arguments], env=given, check=True)
