"""Who may use the servers of `patchline up`: nobody but the user, and no page but their own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import websockets
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from patchline.flows.prefect_api.temporary_server import TemporaryServer
from patchline.flows.services import service_processes
from patchline.pipeline import local_services
from tests.browser.chromium import browser, missing
from tests.flows.services.local_servers import Servers, proof
from tests.flows.services.strangers import AS_NOBODY, INTRUDER, TRIED, ask, attack, serving
from tests.patience import patient, until

_FOREIGN = "http://evil.example"
_HTML = {"Accept": "text/html"}
_PATHS = {"prefect": "/api/flows/filter", "mlflow": "/api/2.0/mlflow/experiments/search"}
_HEALTH = {"prefect": "/api/health", "mlflow": "/health"}
_NOBODY = 65534


def _url(servers: Servers, name: str) -> str:
    return servers.state.prefect_url if name == "prefect" else servers.state.mlflow_url


def test_a_page_of_another_origin_is_refused(servers: Servers) -> None:
    """The preflight gets no permission; even with the secret nothing from there is taken."""
    for name, path in _PATHS.items():
        asking = {"Origin": _FOREIGN, "Access_Control_Request_Method": "POST"}
        status, _, headers = ask(_url(servers, name) + path, method="OPTIONS", **asking)
        assert status == 403
        assert not [each for each in headers if each.lower().startswith("access-control")]
    known = proof(servers.folder)
    other_port = servers.state.mlflow_url
    for origin in (_FOREIGN, "null", other_port):
        address = f"{servers.state.prefect_api_url}/flows/filter"
        assert ask(address, {}, Origin=origin, **known)[0] == 403
    for site in ("cross-site", "same-site"):
        address = f"{servers.state.mlflow_url}{_PATHS['mlflow']}?max_results=1"
        for mode, dest in (("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty")):
            how = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}
            assert ask(address, **how, **known)[0] == 403


def test_a_command_of_a_stranger_is_never_run(servers: Servers) -> None:
    """Without the secret no flow is made; with it, the same requests make the file."""
    api = servers.state.prefect_api_url
    without, foreign = servers.folder / "WITHOUT", servers.folder / "FOREIGN"
    assert set(attack(api, without)) == {401}
    assert set(attack(api, foreign, Origin=_FOREIGN, **proof(servers.folder))) == {403}
    own = servers.folder / "OWN"
    assert set(attack(api, own, **proof(servers.folder))) == {201}
    until(own.exists, "the runner has not run the user's own command")
    _, text, _ = ask(f"{api}/flows/filter", {}, **proof(servers.folder))
    assert {flow["name"] for flow in json.loads(text)} & {"WITHOUT", "FOREIGN"} == set()
    assert not without.exists()
    assert not foreign.exists()


def test_without_the_secret_nothing_is_told(servers: Servers) -> None:
    """Secrets of blocks, experiments and pages stay inside; a wrong password is none."""
    blocks = f"{servers.state.prefect_api_url}/block_documents/filter"
    assert ask(blocks, {"include_secrets": True})[0] == 401
    assert ask(blocks, {"include_secrets": True}, **proof(servers.folder))[0] == 200
    wrong = {"Authorization": "Basic cGF0Y2hsaW5lOnd3dw=="}
    for name, path in _PATHS.items():
        assert ask(_url(servers, name) + path, {}, **wrong)[0] == 401
        assert ask(_url(servers, name), **_HTML)[0] == 401


def test_a_name_that_leads_here_from_elsewhere_is_refused(servers: Servers) -> None:
    """A rebound name and another port are refused, at the health address too."""
    for name, asked in _PATHS.items():
        port = _url(servers, name).rpartition(":")[2]
        for path in (_HEALTH[name], asked):
            for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1"):
                address = _url(servers, name) + path
                assert ask(address, Host=host, **proof(servers.folder))[0] == 403
        assert ask(_url(servers, name) + _HEALTH[name])[0] == 200


def test_another_user_of_the_machine_is_refused(servers: Servers) -> None:
    """Both APIs answer 401, files stay shut, and a session taken from a browser opens nothing."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    link = servers.up().json["mlflow_login_url"]
    cookie = ask(link, **_HTML)[2]["set-cookie"].partition(";")[0]
    addresses: list[tuple[str, dict[str, str]]] = [
        *((_url(servers, name) + _HEALTH[name], {}) for name in _PATHS),
        (f"{servers.state.prefect_api_url}/admin/version", {}),
        (f"{servers.state.mlflow_url}{_PATHS['mlflow']}?max_results=1", {}),
        (f"{servers.state.prefect_api_url}/ready", {"Cookie": cookie}),
    ]
    assert ask(addresses[-1][0], Cookie=cookie)[0] == 200
    private = [
        local_services.secret_file(servers.folder),
        local_services.login_file(servers.folder),
    ]
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    done = subprocess.run(
        [python, "-I", "-c", AS_NOBODY, json.dumps(addresses), json.dumps([*map(str, private)])],
        user=_NOBODY,
        group=_NOBODY,
        extra_groups=[],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    found = list(json.loads(done.stdout).values())
    assert found == [200, 200, 401, 401, 401, "PermissionError", "PermissionError"]
    for file in private:
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_link_signs_in_once_at_both_servers(servers: Servers) -> None:
    """It gives a cookie that no script can read and leads to the page; the second time neither."""
    link = servers.up().json["prefect_login_url"]
    assert link.startswith(f"{servers.state.prefect_url}/patchline/login?code=")
    for preview in ({"method": "HEAD"}, {"Sec_Purpose": "prefetch"}):
        assert ask(link, **{**_HTML, **preview})[0] == 503
    status, _, headers = ask(link, **_HTML)
    assert (status, headers["location"]) == (303, "/")
    assert headers["referrer-policy"] == "no-referrer"
    cookie, *flags = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags)
    for name, path in _PATHS.items():
        address = f"{_url(servers, name)}{path}"
        own = {"Origin": _url(servers, name), "Cookie": cookie}
        assert ask(address, {"max_results": 1} if name == "mlflow" else {}, **own)[0] == 200
        assert ask(address, {}, Cookie=cookie)[0] == 401  # no page says that it asks
        assert ask(_url(servers, name), Cookie=cookie, **_HTML)[0] in {200, 307}
    status, text, headers = ask(link, **_HTML)
    assert status == 401
    assert "no longer valid" in text
    assert "set-cookie" not in {name.lower() for name in headers}
    assert ask(_url(servers, "mlflow"), Cookie=f"{cookie[:-1]}0", **_HTML)[0] == 401 or (
        cookie.endswith("0")
    )


def test_websockets_ask_for_the_secret_too(servers: Servers) -> None:
    """Events and logs are neither sent nor taken without it, nor for another origin's page."""
    secret = f"patchline:{local_services.secret(servers.folder)}"

    async def say(path: str, token: str | None, **options: Any) -> str:
        address = f"{servers.state.prefect_api_url.replace('http', 'ws')}{path}"
        async with websockets.connect(address, **options) as socket:
            await socket.send(json.dumps({"type": "auth", "token": token}))
            return str(json.loads(await socket.recv())["type"])

    async def attempts() -> None:
        spoken: dict[str, Any] = {"subprotocols": [websockets.Subprotocol("prefect")]}
        for path in ("/events/in", "/events/out", "/logs/out"):
            assert await say(path, secret, **spoken) == "auth_success"
            for wrong in (None, "patchline:wrong"):
                with pytest.raises(websockets.ConnectionClosedError) as closed:
                    await say(path, wrong, **spoken)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
            refused: tuple[dict[str, Any], ...] = (
                {},
                {**spoken, "origin": _FOREIGN},
                {"origin": _FOREIGN, "additional_headers": proof(servers.folder)},
                {**spoken, "additional_headers": {"Sec-Fetch-Site": "cross-site"}},
            )
            for options in refused:
                with pytest.raises(websockets.InvalidStatus, match="403"):
                    await say(path, secret, **options)

    asyncio.run(attempts())


@pytest.mark.usefixtures("servers")
def test_the_users_own_commands_log_in_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that has read it has the variables with which the clients of both servers sign in."""
    script = "set -a; . .patchline/services/login.env; set +a; env"
    bare = {"PATH": os.environ["PATH"]}
    said = subprocess.check_output(["sh", "-c", script], env=bare, text=True)
    found = dict(line.partition("=")[::2] for line in said.splitlines())
    settings = {PREFECT_API_URL: found["PREFECT_API_URL"]}
    secret = {PREFECT_API_AUTH_STRING: found["PREFECT_API_AUTH_STRING"]}
    with temporary_settings(settings | secret), get_client(sync_client=True) as client:
        assert "patchline" in {pool.name for pool in client.read_work_pools()}
    for name in local_services.MLFLOW_VARIABLES:
        monkeypatch.setenv(name, found[name])
    store = MlflowClient(found["MLFLOW_TRACKING_URI"])
    assert "Default" in {each.name for each in store.search_experiments()}


def test_the_secret_is_in_two_files_and_nowhere_else(servers: Servers) -> None:
    """No other file, log or command line has it, nor a code of a link."""
    secret = local_services.secret(servers.folder)
    assert secret
    files = [file for file in servers.folder.rglob("*") if file.is_file()]
    holding = {file for file in files if secret.encode() in file.read_bytes()}
    private = {
        local_services.secret_file(servers.folder),
        local_services.login_file(servers.folder),
    }
    assert holding == private
    for process in service_processes.members(servers.folder):
        assert not any(secret in word for word in process.cmdline())


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_browser_signs_in_by_the_link_and_no_other_page_may_use_that(
    servers: Servers, tmp_path: Path
) -> None:
    """A tab without a session explains how to sign in, and reloads after a sign-in elsewhere.

    Ports share cookies, and still no request, frame or socket of another page gets through.
    """
    link = servers.up().json["prefect_login_url"]
    api, wanted = servers.state.prefect_api_url, f"{servers.state.mlflow_url}/#/models"
    intruder = INTRUDER.replace("API", api).replace("MLFLOW", servers.state.mlflow_url)
    (tmp_path / "index.html").write_text(f'<a href="{wanted}">a link</a>')
    (tmp_path / "intruder.html").write_text(intruder)
    with browser() as window, serving(tmp_path) as other:
        window.open(wanted, "Sign in to Patchline", "patchline up")
        waiting = window.tab()
        window.sign_in(link)
        window.assert_shows("Work Pools")
        window.back_to(waiting)
        window.assert_shows("Models")
        assert window.address() == wanted
        window.tab()
        window.open(link, "Work Pools")  # used, but this browser is signed in
        elsewhere = other.replace("127.0.0.1", "localhost")
        for origin in (other, elsewhere):
            found = window.open(f"{origin}/intruder.html", "done").partition("done")[2]
            assert json.loads(found) == dict.fromkeys(TRIED, "no")
        window.open(f"{elsewhere}/", "a link")
        window.click("a link")
        window.assert_shows("Models")
    _, text, _ = ask(f"{api}/flows/filter", {}, **proof(servers.folder))
    assert "INTRUDER" not in text


@pytest.mark.slow
def test_a_temporary_server_asks_for_its_own_secret_and_is_started_again() -> None:
    """The server of one command is shut for everybody else, has no pages, and survives a kill."""
    said: list[str] = []
    server = TemporaryServer(say=said.append)
    try:
        server.wait()
        assert ask(f"{server.url}/flows/filter", {})[0] == 401
        assert ask(server.url.removesuffix("/api"), **_HTML)[0] == 401
        assert ask(f"{server.url}/flows/filter", {}, Origin=_FOREIGN)[0] == 403
        assert ask(f"{server.url}/health", Host="evil.example")[0] == 403
        killed = server._process
        killed.kill()  # its parent alone waits for it, to know how it ended
        until(lambda: bool(said), "its end was not noticed")
        until(lambda: local_services.answers(f"{server.url}/health"), "it was not started again")
        assert said == ["the temporary Prefect server was killed by SIGKILL and was started again"]
        assert ask(f"{server.url}/flows/filter", {})[0] == 401
    finally:
        server.stop()
    assert server._process.pid != killed.pid
    assert server._process.poll() is not None
