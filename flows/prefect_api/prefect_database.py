"""Prefect's database: a SQLite file in the workspace, unless the user has configured another."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from patchline.flows.prefect_api import database_secrets, postgres, prefect_schema
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.file_locks import locked
from patchline.pipeline.workspace.files.path_uris import sqlite_path, sqlite_uri
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

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
    patient = {"PREFECT_SERVER_DATABASE_TIMEOUT": _BUSY_SECONDS}
    if _is_chosen():
        return {**patient, **_chosen()}
    file = (WORKSPACE / "prefect.db").resolve()
    with storage_errors(file):
        key = database_secrets.key_environment(file)
    return {**patient, **key, _VARIABLE: sqlite_uri(file, asynchronous=True)}


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
            with storage_errors(lock), locked(lock):
                by_migrations = not (file.exists() and file.stat().st_size)
                if by_migrations:
                    with contextlib.suppress(sqlite3.Error):  # the migrations tell the reason
                        by_migrations = not prefect_schema.KEPT_SCHEMA.create(file)
                asyncio.run(interface.create_db())
                if by_migrations:
                    prefect_schema.KEPT_SCHEMA.keep(file)
    except CommandError as error:
        raise OrchestrationError(
            f"Another version of Prefect created the database {shown} ({error}). Install that "
            "version, or move the file away to start with an empty history."
        ) from error
    except SQLAlchemyError as error:
        words = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise OrchestrationError(
            f"The Prefect database {shown} cannot be used ({words}). Check that the disk has free "
            "space and the file is writable, or move it away."
        ) from error


def _chosen() -> dict[str, str]:
    """Return what the user has configured, as variables: the server reads no file of theirs."""
    from prefect.settings import get_current_settings

    database = get_current_settings().server.database
    variables = database.to_environment_variables(exclude_unset=True, include_secrets=True)
    file = sqlite_path(variables.get(_VARIABLE, ""))
    if file is not None and not file.is_absolute():  # the server works in another folder
        variables[_VARIABLE] = sqlite_uri(file.resolve(), asynchronous=True)
    return variables


def _is_chosen() -> bool:
    from prefect.settings import get_current_settings

    if any(f"{prefix}{field}".upper() in os.environ for prefix in _PREFIXES for field in _CHOOSING):
        return True
    return bool(_CHOOSING & get_current_settings().server.database.model_fields_set)
