"""Settings of Prefect that were written for other programs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.context import SettingsContext
from prefect.settings import Profile, Settings, load_profiles

from patchline.flows import prefect_session
from patchline.flows.prefect_api import prefect_settings
from patchline.pipeline.errors import ConfigError, OrchestrationError
from patchline.pipeline.workspace.run_memory import live_runs
from tests.conftest import Run, patchline
from tests.surroundings import recording_proxy

_AWAY = "http://127.0.0.1:9/api"


@contextmanager
def _settings_read_here() -> Iterator[None]:
    """Read Prefect's settings again, as a command that starts in this folder does."""
    named = Profile(name="ephemeral", settings={})
    with SettingsContext(profile=named, settings=Settings()):
        yield


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        (
            _AWAY,
            OrchestrationError,
            f"{_AWAY}, .* not answer .*refused.*unset PREFECT_API_URL",
        ),
        ("my server", ConfigError, "'my server', which Prefect's settings name, .* such as http:"),
    ],
)
def test_a_server_that_cannot_be_asked_is_named(
    tmp_path: Path, url: str, error: type[Exception], words: str
) -> None:
    """The sentence says why it fails and what to do; what is no address is the user's mistake."""
    (tmp_path / "prefect.toml").write_text(f'[api]\nurl = "{url}"\n', encoding="utf-8")
    with _settings_read_here():
        for use in (prefect_session.server, prefect_session.connect):
            with pytest.raises(error, match=words), use():
                pass


def test_a_server_elsewhere_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of the user's on another machine is reached as everything else is there."""
    with recording_proxy() as proxy:
        for name, value in proxy.environment.items():
            if name.startswith(("http", "HTTP")):
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
        monkeypatch.setenv("PREFECT_API_URL", "http://prefect.corp:4200/api")
        with _settings_read_here(), pytest.raises(OrchestrationError, match="502 Bad Gateway"):
            prefect_settings.check_server("http://prefect.corp:4200/api")
        assert "http://prefect.corp:4200/api/health" in proxy.heard[0]


def test_settings_that_cannot_be_read_are_said_in_a_sentence(tmp_path: Path) -> None:
    """A process answers with exit code 2 and Prefect's own message on standard error alone."""
    (tmp_path / "prefect.toml").write_text('[api]\nrequest_timeout = "soon"\n', encoding="utf-8")
    done = patchline("schedule", "list", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    [line] = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert "request_timeout Input should be a valid number" in line
    assert "prefect.toml" in line
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", [".env", "prefect.toml", "pyproject.toml", "home/profiles.toml"])
@pytest.mark.parametrize("damage", [b"\xff\xfe", None, b"api=5\ntool=5\nactive=3\nprofiles=4"])
def test_a_damaged_file_of_settings_is_one_sentence(
    name: str, damage: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Prefect's reader fails at, the sentence names the files, and not the user's code."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    if damage:
        file.write_bytes(damage)
    else:
        file.mkdir()
    errors = []
    for read in (Settings, load_profiles):
        try:
            read()
        except Exception as error:  # noqa: BLE001 - which one it is belongs to Prefect
            errors.append(str(prefect_settings.sentence(error)))
    readable = name == ".env" and damage != b"\xff\xfe"  # Prefect skips a folder of that name
    assert bool(errors) != readable
    assert all(file.name in words and "\n" not in words for words in errors)
    assert prefect_settings.sentence(ValueError("of the user's own code")) is None


def test_neither_a_proxy_nor_settings_of_others_touch_a_run(finished_run: Run) -> None:
    """It was run with both: see the fixture. The proxy of every variable heard nothing."""
    assert (finished_run.folder / "heard_by_proxy.txt").read_text("utf-8") == ""


def test_a_run_shows_stages_artifacts_and_the_way_to_mlflow(finished_run: Run) -> None:
    """A run is completed in Prefect's database, stage by stage, and leads to MLflow."""
    database = sqlite3.connect(f"file:{finished_run.folder / 'prefect.db'}?immutable=1", uri=True)

    def rows(query: str) -> list[tuple[Any, ...]]:
        return list(database.execute(query))

    with contextlib.closing(database):
        [(name, state, tags, config)] = rows(
            "SELECT name, state_type, tags, parameters FROM flow_run"
        )
        tasks = rows("SELECT name, state_type FROM task_run ORDER BY expected_start_time")
        artifacts = dict(rows("SELECT key, data FROM artifact"))
    run_id = finished_run.summary["run_id"]
    assert (state, name.split()[0]) == ("COMPLETED", "photos")
    assert f"mlflow:{run_id}" in json.loads(tags)
    assert [tag for tag in json.loads(tags) if tag.startswith(live_runs.OWNER)]
    names = [name for name, _ in tasks]
    assert names[:3] == ["Read photos", "Decode 120 images", "Train vit with conv for 12 epochs"]
    assert [name.split()[0] for name in names[3:]] == ["Evaluate", "Package", "Register", "Assign"]
    assert {state for _, state in tasks} == {"COMPLETED"}
    assert "test-metrics" in artifacts
    for key in ("summary", "mlflow-run"):
        assert run_id in artifacts[key]
    assert json.loads(config)["config"]["training"]["epochs"] == 12
