"""Who may call the server: host names, origins, the token, HTTPS and a proxy's path.

A certificate is renewed while the server runs, also if the server sees half of that.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.listening import CertificateRenewal
from tests.patience import patient
from tests.pipeline.registry.serving.served import NAME, Registry, Serving, png, serving

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of the tests
PROBES = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:{port}"},
        {"host": "localhost:1"},
        {"host": "127.0.0.1.evil.example:{port}"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:{port}"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_strangers_are_refused(server: Serving, headers: dict[str, str]) -> None:
    """Pages of other origins, and other names that lead here, get nothing."""
    named = {name: value.format(port=server.port) for name, value in headers.items()}
    for reply in (
        server.predict(png(1), named),
        *(server.ask("GET", path, None, named) for path in ("/status", "/metrics", "/")),
    ):
        assert reply.status == 403
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_own_pages_and_names_pass(server: Serving) -> None:
    """The server's own page, and its names on this machine, are answered."""
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        own = {"host": f"{host}:{server.port}", "origin": f"http://{host}:{server.port}"}
        reply = server.predict(png(1), {**own, "sec-fetch-site": "same-origin"})
        assert reply.status == 200, host
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert server.ask("GET", "/", None, {**link, "sec-fetch-dest": "document"}).status == 200


def test_probes_pass_under_any_name(server: Serving) -> None:
    """A cluster asks for health by the address of a container, and learns nothing else."""
    for path in PROBES:
        reply = server.ask("GET", path, None, {"host": "10.1.2.3:8000"})
        assert reply.status == 200
        assert NAME not in reply.body.decode()
        head = server.ask("HEAD", path, None, {"host": "10.1.2.3:8000"})
        assert (head.status, head.body) == (200, b"")
        assert server.ask("POST", path, b"", {"host": "10.1.2.3:8000"}).status == 403


def test_a_token_is_asked_for(registry: Registry, tmp_path: Path) -> None:
    """With a token, nothing but probes and the files of the page is answered without it."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    arguments = ["--token-file", str(file), "--host", "0.0.0.0", "--allowed-host", "models.example"]  # noqa: S104 - the token is tested
    with serving(registry.folder, *arguments, "--root-path", "/flowers") as server:
        right = {"authorization": f"Bearer {TOKEN}"}
        assert server.predict(png(1), right).status == 200
        for headers in (
            {},
            {"authorization": TOKEN},
            {"authorization": f"Bearer {TOKEN[:-1]}"},
            {"authorization": f"Bearer {TOKEN}x"},
            {"authorization": "Bearer "},
        ):
            reply = server.predict(png(1), headers)
            assert reply.status == 401
            assert reply.headers["www-authenticate"].startswith("Bearer")
        for path in ("/status", "/metrics", "/openapi.json", f"/v2/models/{NAME}"):
            assert server.ask("GET", path).status == 401
            assert server.ask("GET", path, None, right).status == 200
        for path in ("/", "/docs", "/static/page.js", *PROBES):
            assert server.ask("GET", path).status == 200
        for host in ("models.example", "models.example:443", "Models.Example"):
            named = {**right, "host": host, "origin": "https://models.example"}
            assert server.predict(png(1), named).status == 200, host
        assert server.predict(png(1), {**right, "host": "other.example"}).status == 403
        assert server.ask("GET", "/flowers/static/page.css").status == 200
        assert server.ask("POST", "/flowers/predict", png(1), right).status == 200
        assert TOKEN not in server.log.read_text()
        command = Path(f"/proc/{server.process.pid}/cmdline")
        assert not command.exists() or TOKEN not in command.read_text()


def test_https_is_served(registry: Registry, tmp_path: Path) -> None:
    """With a certificate, the server answers over TLS alone."""
    certificate, key = made_certificate(tmp_path / "own")
    arguments = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with serving(registry.folder, *arguments) as server:
        assert server.ready["url"].startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection(
            "localhost", server.port, context=trusted, timeout=patient(60)
        )
        connection.request("POST", "/predict", png(1), {"content-type": "image/png"})
        assert connection.getresponse().status == 200
        connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):
            server.predict(png(1))


def made_certificate(folder: Path) -> tuple[Path, Path]:
    """Return a new certificate and its key."""
    folder.mkdir()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("first", [0, 1])
def test_a_certificate_that_is_seen_half_renewed_is_read_again(
    tmp_path: Path, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever file comes first: one warning, and the new certificate once both are there."""
    caplog.set_level(logging.INFO)
    used, renewed = made_certificate(tmp_path / "used"), made_certificate(tmp_path / "renewed")
    config = ServingConfig(tls_certificate=used[0], tls_key=used[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*used)
    renewal = CertificateRenewal(config, context)
    renewal.check()
    assert not caplog.records
    for place in (first, 1 - first):
        shutil.copyfile(renewed[place], used[place])
        for _ in range(3):
            renewal.check()
    warning, success = (record.getMessage() for record in caplog.records)
    assert "is not used" in warning
    assert "is used for new connections" in success
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    shown = client.getpeercert(binary_form=True)
    assert shown == ssl.PEM_cert_to_DER_cert(renewed[0].read_text())
