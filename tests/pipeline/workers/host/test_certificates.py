"""Certificates of the environment that would break every client, of local servers, too."""

from __future__ import annotations

import os
from pathlib import Path

import certifi
import httpx
import pytest

from patchline.pipeline.workers.host import certificates
from tests.conftest import patchline


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the variables, and forget afterwards what was removed."""
    for name in certificates.CERTIFICATE_VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(certificates, "_left_out", {})


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
    (tmp_path / "text.pem").write_text("no certificate", encoding="utf-8")
    good = {"SSL_CERT_FILE": certifi.where(), "SSLKEYLOGFILE": str(tmp_path / "keys.log")}
    for each, text in {**good, name: str(tmp_path / value)}.items():
        monkeypatch.setenv(each, text)
    with pytest.raises(OSError):  # noqa: PT011 - or an SSLError, which is one; words vary
        httpx.Client()
    for _ in range(2):
        certificates.correct_certificates()
    httpx.Client()
    [said] = certificates.certificates_left_out()
    assert said.startswith(f"{name} names {tmp_path / value} (")
    assert reason in said
    assert {each: os.environ.get(each) for each in good} == {**good, name: None}
    certificates.forget_certificates()
    assert certificates.certificates_left_out() == []


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
