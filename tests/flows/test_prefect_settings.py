"""Settings of Prefect that were written for other programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.context import SettingsContext
from prefect.settings import Profile, Settings, load_profiles

from patchline.flows import prefect_session, prefect_settings
from patchline.flows.python_api.session import session
from patchline.pipeline.errors import ConfigError, OrchestrationError
from tests.conftest import Run, patchline
from tests.surroundings import recording_proxy

_AWAY = "http://127.0.0.1:9/api"


@contextmanager
def _settings_read_here() -> Iterator[None]:
    """Read Prefect's settings again, as a command that starts in this folder does."""
    named = Profile(name="ephemeral", settings={})
    with SettingsContext(profile=named, settings=Settings()):
        yield


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """The sentence says why it fails, what to do, and which command shows what names it."""
    (tmp_path / "prefect.toml").write_text(f'[api]\nurl = "{_AWAY}"\n', encoding="utf-8")
    words = f"{_AWAY}, .* does not answer .*refused.*unset PREFECT_API_URL .*`prefect config view`"
    with _settings_read_here():
        for use in (prefect_session.server, prefect_session.connected):
            with pytest.raises(OrchestrationError, match=words), use():
                pass


def test_what_is_no_address_is_named(tmp_path: Path) -> None:
    """It is the user's mistake, with an example of an address."""
    (tmp_path / "prefect.toml").write_text('[api]\nurl = "my server"\n', "utf-8")
    words = r"'my server', which Prefect's settings name, .* such as http://127"
    with _settings_read_here(), pytest.raises(ConfigError, match=words), prefect_session.server():
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("api = [\n", "Invalid value (at end of document)"),
        ('[api]\nrequest_timeout = "soon"\n', "request_timeout Input should be a valid number"),
    ],
)
def test_settings_that_cannot_be_read_are_said_in_a_sentence(
    text: str, words: str, tmp_path: Path
) -> None:
    """It holds Prefect's own message, and no traceback is shown."""
    (tmp_path / "prefect.toml").write_text(text, encoding="utf-8")
    done = patchline("schedule", "list", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    [line] = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert words in line
    assert "prefect.toml" in line
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", [".env", "prefect.toml", "pyproject.toml", "home/profiles.toml"])
@pytest.mark.parametrize("damage", ["not text", "a folder", "no table"])
def test_a_damaged_file_of_settings_is_one_sentence(
    name: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Prefect's reader fails at, the sentence names the files, and not the user's code."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    if damage == "a folder":
        file.mkdir()
    elif damage == "not text":
        file.write_bytes(b"\xff\xfe")
    else:
        file.write_text("api = 5\ntool = 5\nactive = 3\nprofiles = 4\n", encoding="utf-8")
    readers = (Settings, load_profiles)
    errors = []
    for read in readers:
        try:
            read()
        except Exception as error:  # noqa: BLE001 - which one it is belongs to Prefect
            errors.append(str(prefect_settings.sentence(error)))
    readable = name == ".env" and damage != "not text"  # Prefect skips a folder of that name
    assert bool(errors) != readable
    assert all(file.name in words and "\n" not in words for words in errors)
    other = ValueError("of the user's own code")
    assert prefect_settings.sentence(other) is None


def test_a_program_gets_its_proxies_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the Python API exempts this machine only while it runs."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    monkeypatch.setenv("https_proxy", "http://proxy.corp:3128")
    monkeypatch.setenv("no_proxy", "corp")
    before = dict(os.environ)
    with session():
        assert "ALL_PROXY" not in os.environ  # no client of Prefect could be created with it
        assert os.environ["https_proxy"] == "http://proxy.corp:3128"
        assert {"corp", "127.0.0.1"} <= set(os.environ["no_proxy"].split(","))
    assert dict(os.environ) == before


def test_neither_a_proxy_nor_settings_of_others_touch_a_run(finished_run: Run) -> None:
    """It was run with both: see the fixture. The proxy of every variable heard nothing."""
    assert (finished_run.folder / "heard_by_proxy.txt").read_text("utf-8") == ""
