"""A new Prefect database is created from a file of SQL, and is what the migrations lead to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from patchline.flows.services import prefect_database, prefect_schema

URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database that Prefect's own migrations have created."""
    return prefect_schema.migrated(tmp_path_factory.mktemp("migrated"))


def pragmas(file: Path) -> dict[str, object]:
    """Return what the header of a database says."""
    names = ("auto_vacuum", "page_size", "application_id", "user_version", "encoding")
    with closing(sqlite3.connect(file)) as database:
        return {name: database.execute(f"PRAGMA {name}").fetchone() for name in names}


def statements(sql: str) -> list[list[str]]:
    """Return the lines of each statement, in an order of their own.

    Migrations write the constraints of a table in the order of a set.
    """
    return sorted(
        sorted(line.strip(" \t,") for line in statement.splitlines())
        for statement in sql.split(";\n")
    )


@pytest.mark.slow  # a hundred migrations take 5 s; the next test is their short form
def test_the_file_is_what_the_migrations_lead_to(migrated: Path, tmp_path: Path) -> None:
    """After an update of Prefect, this test says that the file has to be written again."""
    again = "python -m patchline.flows.services.prefect_schema"
    by_migrations = statements(prefect_schema.schema_of(migrated))
    assert statements(prefect_schema.SCHEMA.read_text("utf-8")) == by_migrations, again
    file = tmp_path / "quick.db"
    assert prefect_schema.create(file)
    assert statements(prefect_schema.schema_of(file)) == by_migrations
    assert pragmas(file) == pragmas(migrated)


def test_a_new_database_needs_no_migration(tmp_path: Path) -> None:
    """The file is that of the installed Prefect, and creates its tables."""
    file = tmp_path / "quick.db"
    assert prefect_schema.create(file), "python -m patchline.flows.services.prefect_schema"
    assert "CREATE TABLE flow_run " in prefect_schema.schema_of(file).replace('"', "")
    assert not prefect_schema.create(file)


def test_a_database_with_tables_and_another_prefect_are_left_to_the_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written into them."""
    used = tmp_path / "used.db"
    with closing(sqlite3.connect(used)) as database:
        database.execute("CREATE TABLE own (id)")
    assert not prefect_schema.create(used)
    assert "flow_run" not in prefect_schema.schema_of(used)
    monkeypatch.setattr(metadata, "version", lambda _: "0.1")
    assert not prefect_schema.create(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_a_new_database_is_upgraded_without_a_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server finds it at the newest revision."""
    from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

    monkeypatch.setattr(prefect_schema, "create", created := _Recorded(prefect_schema.create))
    url = f"sqlite+aiosqlite:///{tmp_path / 'new.db'}"
    with temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: url}):
        prefect_database.upgrade()
        prefect_database.upgrade()
    assert created.answers == [True]


class _Recorded:
    """A function whose answers are kept."""

    def __init__(self, function: Callable[[Path], bool]) -> None:
        self.function = function
        self.answers: list[bool] = []

    def __call__(self, file: Path) -> bool:
        """Return the answer of the function."""
        self.answers.append(self.function(file))
        return self.answers[-1]
