"""A certificate that is renewed while the server runs, also if the server sees half of that."""

from __future__ import annotations

import contextlib
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from patchline.pipeline.serving.certificate import CertificateRenewal
from patchline.pipeline.serving.config import ServingConfig


def made(folder: Path) -> tuple[Path, Path]:
    """Return a new certificate and its key."""
    folder.mkdir()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("first", [0, 1])
def test_a_certificate_that_is_seen_half_renewed_is_read_again(
    tmp_path: Path, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever file comes first: one warning, and the new certificate once both are there."""
    caplog.set_level(logging.INFO)
    used, renewed = made(tmp_path / "used"), made(tmp_path / "renewed")
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
    assert presented(context) == ssl.PEM_cert_to_DER_cert(renewed[0].read_text())


def presented(context: ssl.SSLContext) -> bytes | None:
    """Return the certificate that a client is shown."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert(binary_form=True)
