"""Every library that talks to our servers, with every way to name a proxy."""

from __future__ import annotations

import os

import httpx
import pytest
from requests.utils import get_environ_proxies
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from pipeline.errors import OrchestrationError
from pipeline.host import proxies

_HTTP = ("http://proxy.corp:3128", "proxy.corp:3128", "https://user:pass@proxy.corp/")
_UNUSABLE = (
    "socks5://127.0.0.1:1080",
    "socks5h://proxy.corp:1080",
    "socks4://proxy.corp:1080",
    "socks://proxy.corp",
    "http://proxy:port",
    "nonsense://",
    "://",
    "http://",
    "http://[::1",
    " ",
)
_HERE = (
    "http://127.0.0.1:4200/api",
    "http://localhost:4200/api",
    "http://127.0.0.7:4200/api",
    "http://0.0.0.0:4200/api",
    "http://app.localhost/api",
)
_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a proxy, and forget afterwards what the test has named."""
    for name in proxies.NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(proxies, "_removed", {})


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
    proxies.apply()
    assert _through_a_proxy(*_HERE) == []


@pytest.mark.parametrize("value", _HTTP)
def test_a_proxy_is_kept_for_other_machines(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server elsewhere, a webhook and a download still go through the user's proxy."""
    for name in ("http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, value)
    proxies.apply()
    assert (os.environ["http_proxy"], os.environ["HTTPS_PROXY"]) == (value, value)
    for url in ("http://mlflow.corp:5000", "https://hooks.example.org/x"):
        proxies.check(url)
        assert get_environ_proxies(url)
        with httpx.Client(verify=False) as client:  # noqa: S501
            assert _through(client, url)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"no_proxy": "a.corp, .b.corp"}, ("a.corp", ".b.corp")),
        ({"NO_PROXY": "10.0.0.0/8"}, ("10.0.0.0/8",)),
        ({"no_proxy": "a.corp", "NO_PROXY": "b.corp"}, ("a.corp",)),
        ({"no_proxy": "localhost"}, ()),
    ],
)
def test_what_the_user_exempts_stays_exempt(
    given: dict[str, str], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine is added to the user's own list, once, however often it is done."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    proxies.apply()
    once = os.environ["no_proxy"]
    proxies.apply()
    assert os.environ["no_proxy"] == once
    names = once.split(",")
    assert set(names) >= {*expected, "localhost", "127.0.0.1", "::1"}
    assert len(names) == len(set(names))


def test_an_asterisk_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries know `*`, for no proxy at all, only on its own."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("http_proxy", _HTTP[0])
    proxies.apply()
    assert os.environ["no_proxy"] == "*"
    assert _through_a_proxy("http://mlflow.corp:5000") == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("socks5://me:hush@127.0.0.1:1080", r"a SOCKS proxy.*mlflow\.corp.*`pip install .*socksio"),
        ("socks4://proxy.corp", r"no proxy that can be used to reach mlflow\.corp"),
        ("http://proxy:port", r"no proxy that can be used.*http://HOST:PORT"),
    ],
)
def test_a_server_elsewhere_names_a_proxy_that_cannot_be_used(
    value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never contacted directly behind the user's back; the sentence shows no password."""
    monkeypatch.setenv("ALL_PROXY", value)
    proxies.apply()
    proxies.check("http://127.0.0.1:5000")
    with pytest.raises(OrchestrationError, match=f"ALL_PROXY is .*{words}") as caught:
        proxies.check("http://mlflow.corp:5000")
    assert "hush" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "mlflow.corp")
    proxies.check("http://mlflow.corp:5000")
