"""Planted secrets are looked for wherever somebody else could read them."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from patchline.pipeline import local_services
from tests.conftest import write_photos
from tests.flows.services.local_servers import Servers, page, serving
from tests.flows.training.runs import TINY
from tests.made.servers import Command

STORE_PASSWORD, HOOK_TOKEN, HUSHED = "Pl4@nted/store", "pl4nted-hook-token", "pl4nted-variable"
SECRETS = (STORE_PASSWORD, quote(STORE_PASSWORD, safe=""), HOOK_TOKEN, HUSHED)


@pytest.mark.parametrize(
    "store",
    [
        f"http://anna:{STORE_PASSWORD}@127.0.0.1:9/?token={HOOK_TOKEN}",
        f"postgresql://anna:{STORE_PASSWORD}@127.0.0.1:9/db",
    ],
    ids=["web address", "database"],
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
    assert not [secret for secret in SECRETS if secret in out + err + _content(tmp_path)]


@pytest.mark.slow
def test_planted_secrets_are_found_nowhere(servers: Servers, tmp_path: Path) -> None:
    """A whole day: servers, a webhook, a run, its pages, the end, and what is left on the disk.

    The store is another folder's MLflow server, which asks for a password.
    """
    folder = tmp_path / "work"
    write_photos(folder / "photos", images=8)
    seen = []
    password = local_services.secret(servers.folder)
    assert password
    address = servers.state.mlflow_url.replace("//", f"//{local_services.USER}:{password}@")
    planted = {
        "MLFLOW_TRACKING_URI": address,
        "SOME_SERVICE_API_KEY": HUSHED,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "PATCHLINE_WEBHOOK": f"http://127.0.0.1:9/{HOOK_TOKEN}?token={HOOK_TOKEN}",
    }
    with serving(folder, **planted) as own:
        for words in (
            ("up", "--json"),
            ("notify", "create", "hook"),
            ("notify", "list", "--json"),
            ("run", "photos", *TINY.split(), "--json"),
            ("models", "--json"),
        ):
            done = own.run(*words)
            assert done.code == 0, done.err
            seen.append(done.out + done.err)
        commands = psutil.process_iter(["cmdline"])
        lines = [" ".join(each.info["cmdline"] or ()) for each in commands]
        seen += [line for line in lines if str(folder) in line]
        seen.append(page(f"{own.state.prefect_api_url}/admin/settings", folder))
        assert _encrypted_apart(folder / ".patchline/prefect.db")
    for text in (*seen, _content(folder)):
        assert not [secret for secret in (password, HOOK_TOKEN, HUSHED) if secret in text]
    assert stat.S_IMODE((folder / ".patchline").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / ".patchline/prefect.db").stat().st_mode) == 0o600


def _encrypted_apart(database: Path) -> bool:
    """Return whether a database holds a webhook, but not the key to it."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as opened:
        [[blocks]] = opened.execute("select count(*) from block_document")
        keys = opened.execute("select 1 from configuration where key = 'ENCRYPTION_KEY'")
        return blocks > 0 and not keys.fetchall()


def _content(folder: Path) -> str:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return "\n".join(file.read_bytes().decode("latin-1") for file in files)
