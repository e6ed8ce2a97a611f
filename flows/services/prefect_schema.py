"""The empty database of the installed Prefect, as SQL.

Prefect creates a database by a hundred migrations, which take seconds of the first command in every
folder. What they lead to is kept once in the Python environment, to which that Prefect belongs, and
creates the other databases; migrations of a later Prefect continue from it.
`python -m patchline.flows.services.prefect_schema` keeps it before the first command does.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.files.atomic_files import write_text


def kept() -> Path:
    """Return the file that holds the SQL for the installed Prefect, if there is one."""
    return Path(sys.prefix) / "share" / "patchline" / f"prefect-{metadata.version('prefect')}.sql"


def create(file: Path) -> bool:
    """Create an empty database, and return whether that was possible.

    It is not if the file holds tables, or no SQL is kept for this version of Prefect. Nobody else
    may use the file meanwhile; a process that is killed leaves no part of the tables.

    Args:
        file: of the database.
    """
    try:
        sql = kept().read_text(encoding="utf-8")
    except OSError:
        return False
    with closing(sqlite3.connect(file)) as database:
        [(tables,)] = database.execute("SELECT count(*) FROM sqlite_master")
        if tables:
            return False
        database.executescript(sql)  # one transaction
    return True


def keep(file: Path) -> None:
    """Keep what creates a database that is new and empty; an environment may be read-only."""
    with suppress(StorageError, OSError):
        kept().parent.mkdir(parents=True, exist_ok=True)
        write_text(kept(), schema_of(file))


def schema_of(file: Path) -> str:
    """Return the SQL that creates a database with the same content."""
    with closing(sqlite3.connect(file)) as database:
        lines = "\n".join(database.iterdump()).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def migrated(folder: Path) -> Path:
    """Create an empty database in a folder by Prefect's own migrations, and return its file."""
    file = folder / "migrated.db"
    program = (
        "import asyncio; from prefect.server.database import provide_database_interface as p; "
        "asyncio.run(p().create_db())"
    )
    variables = {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}",
    }
    command = [sys.executable, "-P", "-c", program]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    return file


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        keep(migrated(Path(place)))
