"""Protect the secrets in Prefect's SQLite file: its mode, and an encryption key in another file.

Prefect encrypts blocks, such as the address of a webhook, and stores the key in the same database.
So the key of a new database is generated here and passed to the server in its environment: the
database alone does not reveal a block. An older database keeps its key inside.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

from patchline.pipeline.workspace.files.atomic_files import write_private_text
from patchline.pipeline.workspace.files.file_locks import locked
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_private_file

_VARIABLES = ("PREFECT_SERVER_ENCRYPTION_KEY", "ORION_ENCRYPTION_KEY")
_KEY_BYTES = 32


def key_environment(database: Path) -> dict[str, str]:
    """Make the database private, and return the variable with the key for the server.

    Args:
        database: the SQLite file; created empty if it does not exist.

    Raises:
        OSError: if it may not be written.
    """
    key_file = database.with_suffix(".key")
    make_private_file(database.with_suffix(".key.lock"))
    with locked(database.with_suffix(".key.lock")):
        is_new = not database.exists() or database.stat().st_size == 0
        make_private_file(database)
        for companion in (f"{database.name}-wal", f"{database.name}-shm"):
            if database.with_name(companion).exists():
                make_private_file(database.with_name(companion))
        if any(name in os.environ for name in _VARIABLES):
            return {}
        if is_new and not key_file.exists():
            _write_key(key_file)
        if not key_file.exists():
            return {}
        return {_VARIABLES[0]: key_file.read_text(encoding="utf-8").strip()}


def make_key() -> None:
    """Generate the key of a restored database, whose archive holds neither key nor secret."""
    database = WORKSPACE / "prefect.db"
    if database.is_file() and not database.with_suffix(".key").exists():
        _write_key(database.with_suffix(".key"))


def _write_key(file: Path) -> None:
    write_private_text(file, base64.urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode())
