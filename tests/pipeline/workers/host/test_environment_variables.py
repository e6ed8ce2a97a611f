"""Proxies and files of TLS in the environment break no client."""

from __future__ import annotations

import os
from pathlib import Path

import certifi
import httpx
import pytest
from requests.utils import get_environ_proxies, should_bypass_proxies
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.workers.host import environment_variables
from tests.conftest import patchline

_HTTP = ("http://proxy.corp:3128", "proxy.corp:3128", "https://user:pass@proxy.corp/")
_UNUSABLE = (
    "socks5h://proxy.corp:1080",
    "socks4://127.0.0.1:1080",
    "http://proxy:port",
    "://",
    " ",
)
_HERE = (
    "http://127.0.0.1:4200/api",
    "http://localhost:4200/api",
    "http://127.0.0.7:4200/api",
    "http://0.0.0.0:4200/api",
    "http://app.localhost/api",
)
_EXEMPTED = {
    "localhost,127.0.0.1,[::1]": [],
    "[fd00::]/8,[::1/128],[fd00::5]": ["fd00::5"],
    "http://host:port,a.corp:65535": ["a.corp:65535"],
    "münchen.de,.münchen.de:80,xn--mnchen-3ya.de": ["xn--mnchen-3ya.de"],
    "ü..corp,a..corp,\u2028,\x7f": [],
    "a.corp b.corp:80\tc_d.corp": ["a.corp", "b.corp:80", "c_d.corp"],
    "10.0.0.0/8,192.168.7.9/32,.svc,.cluster.local,10.1.2.3:80": [
        "10.0.0.0/8", "192.168.7.9", ".svc", ".cluster.local", "10.1.2.3:80"
    ],
    "*": ["*"],
}  # fmt: skip
"""What users exempt, and what of it is kept."""
_VARIABLES = ("http_proxy", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a proxy, and forget afterwards what the test has named."""
    for name in environment_variables.PROXY_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment_variables, "_removed", {})
    monkeypatch.setattr(environment_variables, "_entries_left_out", {})


def _through(client: httpx.Client, url: str) -> bool:
    """Return whether httpx would use a proxy."""
    return client._transport_for_url(httpx.URL(url)) is not client._transport


def _through_a_proxy(*urls: str) -> list[str]:
    """Return those of the URLs that any library would not connect to directly."""
    with httpx.Client(verify=False) as client:  # noqa: S501 - nothing is sent; certificates take time
        return [
            url
            for url in urls
            if _through(client, url)
            or get_environ_proxies(url)
            or get_proxy(parse_uri(url.replace("http://", "ws://")))
        ]


@pytest.mark.parametrize("value", [*_HTTP, *_UNUSABLE])
@pytest.mark.parametrize("name", _VARIABLES)
def test_no_library_uses_a_proxy_on_this_machine(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the variable holds, httpx, requests and websockets connect directly."""
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("PREFECT_API_URL", _HERE[2])
    environment_variables.correct_proxies()
    assert _through_a_proxy(*_HERE) == []


@pytest.mark.parametrize("value", _HTTP)
def test_a_proxy_is_kept_for_other_machines(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server elsewhere, a webhook and a download still go through the user's proxy."""
    for name in ("http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, value)
    environment_variables.correct_proxies()
    assert (os.environ["http_proxy"], os.environ["HTTPS_PROXY"]) == (value, value)
    for url in ("http://mlflow.corp:5000", "https://hooks.example.org/x"):
        environment_variables.check_proxy(url)
        assert get_environ_proxies(url)
        with httpx.Client(verify=False) as client:  # noqa: S501
            assert _through(client, url)


@pytest.mark.parametrize(
    ("name", "proxy"), [("no_proxy", ""), ("NO_PROXY", "socks5://127.0.0.1:1080")]
)
@pytest.mark.parametrize("value", _EXEMPTED)
def test_whatever_the_user_exempts_a_client_can_be_created(
    value: str, name: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Httpx reads the whole list, with or without a proxy; an unknown entry would end it."""
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("PREFECT_API_URL", _HERE[2])
    if proxy:
        monkeypatch.setenv("all_proxy", proxy)
    environment_variables.correct_proxies()
    environment_variables.correct_proxies()
    httpx.AsyncClient(verify=False)  # noqa: S501
    assert _through_a_proxy(*_HERE) == []
    assert should_bypass_proxies("http://127.0.0.1:5000", None)
    kept = os.environ[name].split(",")
    assert value == "*" or os.environ[name.swapcase()].split(",") == kept
    added = {*environment_variables._HERE, "127.0.0.7"}
    assert [entry for entry in kept if entry not in added] == _EXEMPTED[value]


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry without effect is named as it was given; without a proxy, none is missed."""
    given = "a.corp,host:port,[fd00::]/8,[::1],http://me:hush@host:x,münchen.de"
    monkeypatch.setenv("NO_PROXY", given)
    environment_variables.correct_proxies()
    assert environment_variables.proxies_left_out() == ""
    monkeypatch.setenv("ALL_PROXY", _HTTP[0])
    environment_variables.correct_proxies()
    said = environment_variables.proxies_left_out()
    assert said.startswith("no_proxy: left out 'host:port', '[fd00::]/8', ")
    assert "'münchen.de'" in said
    assert all(word not in said for word in ("a.corp", "'[::1]'", "hush"))
    environment_variables.forget_proxies()
    assert environment_variables.proxies_left_out() == ""


@pytest.mark.parametrize(
    ("networks", "inside", "outside"),
    [
        ("10.0.0.0/8", "http://10.1.2.3:4200/api", "http://11.1.2.3:4200/api"),
        ("[fd00::]/8,münchen.de", "http://[fd00::5]:4200/api", "http://corp:4200/api"),
    ],
)
def test_a_server_in_an_exempt_network_is_exempt_for_every_library(
    networks: str, inside: str, outside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only requests understands networks, of IPv4 alone; so the server's address is added."""
    monkeypatch.setenv("no_proxy", networks)
    monkeypatch.setenv("http_proxy", _HTTP[0])
    monkeypatch.setenv("ws_proxy", _HTTP[0])
    environment_variables.correct_proxies()
    for url in (inside, outside):
        environment_variables.check_proxy(url)
    with httpx.Client(verify=False) as client:  # noqa: S501
        assert [_through(client, url) for url in (inside, outside)] == [False, True]
    assert should_bypass_proxies(inside, None)
    assert not should_bypass_proxies(outside, None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("socks5://me:hush@127.0.0.1:1080", r"mlflow\.corp.*`pip install .*socksio"),
        ("http://proxy:port", r"cannot be used.*http://HOST:PORT"),
    ],
)
def test_a_server_elsewhere_names_a_proxy_that_cannot_be_used(
    value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never contacted directly behind the user's back; the sentence shows no password."""
    monkeypatch.setenv("ALL_PROXY", value)
    environment_variables.correct_proxies()
    environment_variables.check_proxy("http://127.0.0.1:5000")
    with pytest.raises(OrchestrationError, match=f"ALL_PROXY is .*{words}") as caught:
        environment_variables.check_proxy("http://mlflow.corp:5000")
    assert "hush" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "mlflow.corp")
    environment_variables.check_proxy("http://mlflow.corp:5000")


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the variables, and forget afterwards what was removed."""
    for name in environment_variables.CERTIFICATE_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment_variables, "_files_left_out", {})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SSL_CERT_FILE", "missing.pem", "No such file or directory"),
        ("SSL_CERT_FILE", "text.pem", "no certificates in PEM format"),
        ("SSLKEYLOGFILE", "missing/keys.log", "its folder does not exist"),
        ("SSLKEYLOGFILE", ".", "it is a folder"),
    ],
)
def test_what_cannot_be_read_is_left_out_and_said(
    name: str, value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can be created then; one sentence names the variable, its value and the fault.

    What can be read stays in use.
    """
    (tmp_path / "text.pem").write_text("no certificate", "utf-8")
    good = {"SSL_CERT_FILE": certifi.where(), "SSLKEYLOGFILE": str(tmp_path / "keys.log")}
    for each, text in {**good, name: str(tmp_path / value)}.items():
        monkeypatch.setenv(each, text)
    with pytest.raises(OSError):  # noqa: PT011 - or an SSLError, which is one; words vary
        httpx.Client()
    for _ in range(2):
        environment_variables.correct_certificates()
    httpx.Client()
    [said] = environment_variables.certificates_left_out()
    assert said.startswith(f"{name} names {tmp_path / value} (")
    assert reason in said
    assert {each: os.environ.get(each) for each in good} == {**good, name: None}
    environment_variables.forget_certificates()
    assert environment_variables.certificates_left_out() == []


def test_a_command_says_it_once(tmp_path: Path) -> None:
    """The command works, without a traceback of Prefect's import."""
    given = {"SSL_CERT_FILE": "/missing.pem", "http_proxy": "http://x.corp:1", "no_proxy": "a:b"}
    done = patchline("schedule", "list", cwd=tmp_path, env=given)
    assert [line.partition(" ")[0] for line in done.err.splitlines()] == [
        "no_proxy:",
        "SSL_CERT_FILE",
        "Error:",
    ]
    assert "No Prefect server is running for this folder" in done.err
