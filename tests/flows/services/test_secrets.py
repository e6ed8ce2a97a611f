"""Planted secrets are looked for wherever somebody else could read them."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from patchline.flows.services import service_programs
from patchline.flows.services.startup_plan import Plan
from patchline.pipeline import local_services
from tests.conftest import patchline, write_photos
from tests.flows.conftest import Command
from tests.flows.services.local_servers import Servers, free_port, own_database, page, until

STORE_PASSWORD, HOOK_TOKEN, HUSHED = "Pl4@nted/store", "pl4nted-hook-token", "pl4nted-variable"
SECRETS = (STORE_PASSWORD, quote(STORE_PASSWORD, safe=""), HOOK_TOKEN, HUSHED)


def holding(text: str) -> list[str]:
    """Return the planted secrets that a text holds."""
    return [secret for secret in SECRETS if secret in text]


def test_the_store_of_a_server_is_on_no_command_line(tmp_path: Path) -> None:
    """It reaches the MLflow server by the environment, which only its owner reads."""
    store = f"postgresql://anna:{STORE_PASSWORD}@host/db"
    plan = Plan(
        prefect_port=free_port(),
        mlflow_port=free_port(),
        max_concurrent_runs=1,
        prefect_api_url=None,
        mlflow_url=None,
        store=store,
        notes=(),
    )
    started = service_programs.Servers(tmp_path, plan, tmp_path / "line", "s3cret-of-it").first()
    assert not holding(" ".join(word for each in started for word in each.command))
    [served] = [each for each in started if each.name == "mlflow"]
    assert served.environment["MLFLOW_TRACKING_URI"] == store


@pytest.mark.parametrize(
    "store",
    [
        f"http://anna:{STORE_PASSWORD}@127.0.0.1:9",
        f"http://127.0.0.1:9/?token={HOOK_TOKEN}",
        f"postgresql://anna:{STORE_PASSWORD}@127.0.0.1:9/db",
    ],
    ids=["web address", "parameter", "database"],
)
def test_a_store_that_is_away_is_said_without_its_secret(
    store: str, run_here: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sentence, the trace that --debug shows, and every file that is left."""
    for name, value in (("REQUEST_MAX_RETRIES", "0"), ("REQUEST_TIMEOUT", "5")):
        monkeypatch.setenv(f"MLFLOW_HTTP_{name}", value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    code, out, err = run_here("models", "--debug")
    assert code == 1
    assert "Traceback" in err
    assert "The MLflow store " in err
    assert not holding(out + err)
    assert not _files_holding(tmp_path)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """Start an MLflow server that asks for a password; return its address with the password."""
    folder = tmp_path / "guarded"
    folder.mkdir()
    (folder / "password").write_text(STORE_PASSWORD, encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-P", "-m", "tests.flows.services.guarded_mlflow"]
    with subprocess.Popen(
        [*command, str(port), "anna", str(folder / "password")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    ) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            until(lambda: local_services.answers(f"{address}/health"), "MLflow does not answer")
            yield f"http://anna:{quote(STORE_PASSWORD, safe='')}@127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_planted_secrets_are_found_nowhere(tmp_path: Path, guarded: str) -> None:
    """A whole day: servers, a webhook, a run, its pages, the end, and what is left on the disk."""
    folder = tmp_path / "work"
    write_photos(folder / "photos")
    planted = {
        **own_database(),
        "MLFLOW_TRACKING_URI": guarded,
        "SOME_SERVICE_API_KEY": HUSHED,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    }
    servers = Servers(folder, planted)
    seen = []

    def command(*words: str) -> None:
        done = patchline(*words, cwd=folder, env=planted, timeout=600)
        assert done.code == 0, done.err
        seen.append(done.out + done.err)

    try:
        done = servers.up()
        assert done.code == 0, done.err
        seen.append(done.out + done.err)
        hook = f"http://127.0.0.1:9/{HOOK_TOKEN}?token={HOOK_TOKEN}"
        planted["PATCHLINE_WEBHOOK"] = hook
        command("notify", "create", "hook")
        command("notify", "list", "--json")
        command(
            "run",
            "photos",
            "--preset",
            "none",
            "--name",
            "shapes",
            "--training.epochs",
            "1",
            "--json",
        )
        command("models", "--json")
        lines = [" ".join(_command_line(each)) for each in psutil.process_iter()]
        seen += [line for line in lines if str(folder) in line]
        seen.append(page(f"{servers.state.prefect_api_url}/admin/settings", folder))
        assert _encrypted_apart(folder / ".patchline/prefect.db")
    finally:
        servers.down("--now")
    assert [holding(text) for text in seen if holding(text)] == []
    assert not _files_holding(folder)
    assert stat.S_IMODE((folder / ".patchline").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / ".patchline/prefect.db").stat().st_mode) == 0o600


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _encrypted_apart(database: Path) -> bool:
    """Return whether a database holds a webhook, but not the key to it."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as opened:
        [[blocks]] = opened.execute("select count(*) from block_document")
        keys = opened.execute("select 1 from configuration where key = 'ENCRYPTION_KEY'")
        return blocks > 0 and not keys.fetchall()


def _files_holding(folder: Path) -> dict[str, list[str]]:
    """Return the files of a folder that hold a secret."""
    found = {}
    for file in folder.rglob("*"):
        if file.is_file():
            secrets = holding(file.read_bytes().decode("latin-1"))
            if secrets:
                found[str(file.relative_to(folder))] = secrets
    return found
