"""Prefect's database: a SQLite file in the workspace, unless the user has configured another.

Prefect encrypts blocks, such as the address of a webhook, and stores the key in the same database.
So the key of a new database is generated here and passed to the server in its environment: the
database alone does not reveal a block. An older database keeps its key inside.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sqlite3
from pathlib import Path

from patchline.flows.prefect_api import postgres, prefect_schema
from patchline.pipeline.errors import OrchestrationError, first_line
from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_private_text
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.paths import sqlite_path, sqlite_uri
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
    with hold_lock(database.with_suffix(".key.lock")):
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


_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
_CHOOSING = frozenset({"connection_url", "driver", "host", "name"})
_PREFIXES = ("prefect_server_database_", "prefect_api_database_")
_BUSY_SECONDS = "60"
"""How long a writer waits for another writer."""


def environment() -> dict[str, str]:
    """Return the variables of a server's environment that configure the database.

    Raises:
        StorageError: if the folder may not be written.
    """
    return {**address_environment(), **own_key()}


def address_environment() -> dict[str, str]:
    """Return the same without the key, and create no file."""
    patient = {"PREFECT_SERVER_DATABASE_TIMEOUT": _BUSY_SECONDS}
    if is_chosen():
        return {**patient, **_read_user_settings()}
    return {**patient, _VARIABLE: sqlite_uri(_own_file(), asynchronous=True)}


def own_key() -> dict[str, str]:
    """Return the variable with the key of our own database; nothing if the user has chosen another.

    Raises:
        StorageError: if the folder may not be written.
    """
    if is_chosen():
        return {}
    file = _own_file()
    with storage_errors(file):
        return key_environment(file)


def _own_file() -> Path:
    return (WORKSPACE / "prefect.db").resolve()


def upgrade() -> None:
    """Create the database or migrate it, in one process at a time.

    Processes that create a SQLite file together would crash each other.

    Raises:
        OrchestrationError: if a newer Prefect created it, or it cannot be used.
    """
    import asyncio

    from alembic.util import CommandError
    from prefect.server.database import provide_database_interface
    from sqlalchemy.exc import SQLAlchemyError

    interface = provide_database_interface()
    address = str(interface.database_config.connection_url)
    file = sqlite_path(address)
    lock = file.with_name(f"{file.name}.lock") if file and file.is_absolute() else None
    shown = file if lock else "that PREFECT_SERVER_DATABASE_CONNECTION_URL names"
    try:
        if file is None or lock is None:
            with postgres.one_at_a_time(address):
                asyncio.run(interface.create_db())
        else:
            with storage_errors(lock), hold_lock(lock):
                by_migrations = not (file.exists() and file.stat().st_size)
                if by_migrations:
                    with contextlib.suppress(sqlite3.Error):  # the migrations tell the reason
                        by_migrations = not prefect_schema.KEPT_SCHEMA.create(file)
                if not prefect_schema.KEPT_SCHEMA.is_in(file):  # Alembic would load all migrations
                    asyncio.run(interface.create_db())
                if by_migrations:
                    prefect_schema.KEPT_SCHEMA.keep(file)
    except CommandError as error:
        raise OrchestrationError(
            f"Another version of Prefect created the database {shown} ({error}). Install that "
            "version, or move the file away to start with an empty history."
        ) from error
    except SQLAlchemyError as error:
        words = first_line(getattr(error, "orig", None) or error)
        raise OrchestrationError(
            f"The Prefect database {shown} cannot be used ({words}). Check that the disk has free "
            "space and the file is writable, or move it away."
        ) from error


def _read_user_settings() -> dict[str, str]:
    """Return what the user has configured, as variables: the server reads no file of theirs."""
    from prefect.settings import get_current_settings

    database = get_current_settings().server.database
    variables = database.to_environment_variables(exclude_unset=True, include_secrets=True)
    file = sqlite_path(variables.get(_VARIABLE, ""))
    if file is not None and not file.is_absolute():  # the server works in another folder
        variables[_VARIABLE] = sqlite_uri(file.resolve(), asynchronous=True)
    return variables


def is_chosen() -> bool:
    """Return whether the user has configured a database."""
    from prefect.settings import get_current_settings

    if any(f"{prefix}{field}".upper() in os.environ for prefix in _PREFIXES for field in _CHOOSING):
        return True
    return bool(_CHOOSING & get_current_settings().server.database.model_fields_set)
