"""Certificates and keys of TLS that the environment names: left out if they cannot be used.

Prefect's client, httpx, reads them when a connection is prepared, and fails there even if it only
talks to this machine, without TLS. So a variable that names a missing or damaged file is removed
before a library or a process reads it: what is trusted then are the certificates that came with
Python's packages, never more than the user had asked for.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_CERTIFICATES, _KEY_LOG = "SSL_CERT_FILE", "SSLKEYLOGFILE"
CERTIFICATE_VARIABLES = (_CERTIFICATES, _KEY_LOG)
"""The variables that `correct_certificates` may remove."""
_files_left_out: dict[str, str] = {}
"""Why this process removed a variable, by its name."""


def correct_certificates() -> None:
    """Remove variables that no client could be created with, here and for child processes."""
    for name, fault in ((_CERTIFICATES, _fault_of_certificates), (_KEY_LOG, _fault_of_key_log)):
        if given := os.environ.get(name):
            _files_left_out.pop(name, None)  # it has been set again
            if reason := fault(Path(given)):
                _files_left_out[name] = f"{given} ({reason})"
                del os.environ[name]


def forget_certificates() -> None:
    """Forget what `correct_certificates` removed: the variables are as the user set them."""
    _files_left_out.clear()


def certificates_left_out() -> list[str]:
    """Return one sentence about each variable that was removed."""
    sentences = {
        _CERTIFICATES: "the certificates of the Python package certifi are used. Correct its path, "
        "or unset it.",
        _KEY_LOG: "no keys are logged. Correct its path, or unset it.",
    }
    return [
        f"{name} names {given}, which cannot be used: {sentences[name]}"
        for name, given in _files_left_out.items()
    ]


def _fault_of_certificates(file: Path) -> str:
    import ssl

    try:
        status = file.stat()
        _load_certificates(file, status.st_mtime_ns, status.st_size)
    except ssl.SSLError:
        return "no certificates in PEM format"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    return ""


@functools.lru_cache(maxsize=1)
def _load_certificates(file: Path, _mtime_ns: int, _bytes: int) -> None:
    """Load a file of certificates, which takes a while, once until it changes."""
    import ssl

    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)


def _fault_of_key_log(file: Path) -> str:
    """Return why keys cannot be written to a file; nothing is written."""
    if file.is_dir():
        return "it is a folder"
    if not file.exists() and not file.parent.is_dir():
        return "its folder does not exist"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return "it may not be written"
    return ""
