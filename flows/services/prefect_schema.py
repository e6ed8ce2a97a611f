"""The empty database of the Prefect version that this package is tested with, as SQL.

Prefect creates a database by a hundred migrations, which take seconds of every first command in a
folder. `prefect_schema.sql` is what they lead to; migrations of a later Prefect continue from it.
`python -m patchline.flows.services.prefect_schema` writes it again, after an update of Prefect.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib import metadata
from pathlib import Path

SCHEMA = Path(__file__).with_suffix(".sql")
_VERSION = "-- Prefect "


def create(file: Path) -> bool:
    """Create an empty database, and return whether that was possible.

    It is not if the file holds tables, or for another version of Prefect than that of the schema.
    Nobody else may use the file meanwhile; a process that is killed leaves no part of the tables.

    Args:
        file: of the database.
    """
    sql = SCHEMA.read_text(encoding="utf-8")
    if sql.splitlines()[0] != f"{_VERSION}{metadata.version('prefect')}":
        return False
    with closing(sqlite3.connect(file)) as database:
        [(tables,)] = database.execute("SELECT count(*) FROM sqlite_master")
        if tables:
            return False
        database.executescript(sql)  # one transaction
    return True


def schema_of(file: Path) -> str:
    """Return the SQL that creates a database with the same content."""
    with closing(sqlite3.connect(file)) as database:
        lines = "\n".join(database.iterdump()).splitlines()
    version = f"{_VERSION}{metadata.version('prefect')}"
    return "\n".join([version, *(line.rstrip() for line in lines)]) + "\n"


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
        SCHEMA.write_text(schema_of(migrated(Path(place))), encoding="utf-8")
