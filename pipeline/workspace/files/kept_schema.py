"""The empty database of an installed package, as SQL in the Python environment.

A package such as Prefect or MLflow creates its database by dozens of migrations, which take seconds
of the first command in every folder. What they lead to is kept once in the Python environment, to
which that version of the package belongs, and creates the other databases; migrations of a later
version continue from it.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.atomic_files import write_text


@dataclass(frozen=True)
class KeptSchema:
    """What creates the SQLite database of a package.

    Attributes:
        package: the name of its distribution.
    """

    package: str

    @property
    def file(self) -> Path:
        """Return the file that holds the SQL for the installed version, if there is one."""
        version = metadata.version(self.package)
        return Path(sys.prefix) / "share" / "patchline" / f"{self.package}-{version}.sql"

    def create(self, database: Path) -> bool:
        """Create an empty database, and return whether that was possible.

        It is not if the file holds tables, or no SQL is kept for this version of the package.
        Nobody else may use the file meanwhile; a process that is killed leaves no part of the
        tables.

        Args:
            database: the file of the database.
        """
        try:
            sql = self.file.read_text(encoding="utf-8")
        except OSError:
            return False
        with closing(sqlite3.connect(database)) as connection:
            [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
            if tables:
                return False
            connection.executescript(sql)  # one transaction
        return True

    def is_in(self, database: Path) -> bool:
        """Return whether a database has had all migrations of the installed version.

        It can also be written, and nobody else writes to it at the moment.

        Args:
            database: the file of the database.
        """
        errors = (OSError, sqlite3.Error, ValueError)
        with suppress(*errors), closing(sqlite3.connect(database)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            [(version,)] = connection.execute("SELECT version_num FROM alembic_version")
            sql = self.file.read_text(encoding="utf-8")
            return f"INSERT INTO \"alembic_version\" VALUES('{version}');" in sql
        return False

    def keep(self, database: Path) -> None:
        """Keep what creates a database that is new and empty; an environment may be read-only."""
        with suppress(StorageError, OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.file, schema_of(database))


def schema_of(database: Path) -> str:
    """Return the SQL that creates a database with the same content."""
    with closing(sqlite3.connect(database)) as connection:
        lines = "\n".join(connection.iterdump()).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"
