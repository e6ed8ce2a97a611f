"""A new Prefect database is created from SQL that an earlier one has left."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from patchline.flows.services import prefect_database, prefect_schema
from patchline.pipeline.files import kept_schema

URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"


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


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a Python environment that holds nothing yet."""
    folder = tmp_path / "environment"
    monkeypatch.setattr(sys, "prefix", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_what_is_kept_is_what_the_migrations_lead_to(tmp_path: Path) -> None:
    """Once it is kept, it creates the tables of Prefect's own migrations, which take seconds."""
    (tmp_path / "migrated").mkdir()
    migrated = prefect_schema.migrated(tmp_path / "migrated")
    _keep_and_create(migrated, tmp_path)


@pytest.mark.usefixtures("environment")
def test_what_is_kept_is_the_database_that_it_comes_from(
    empty_prefect: Path, tmp_path: Path
) -> None:
    """Once it is kept, it creates a new file with the same tables, and only a new one."""
    _keep_and_create(empty_prefect, tmp_path)


def _keep_and_create(migrated: Path, tmp_path: Path) -> None:
    file = tmp_path / "quick.db"
    assert not prefect_schema.KEPT.create(file)
    assert not file.exists()
    prefect_schema.KEPT.keep(migrated)
    assert prefect_schema.KEPT.create(file)
    by_migrations = statements(kept_schema.schema_of(migrated))
    assert statements(kept_schema.schema_of(file)) == by_migrations
    assert pragmas(file) == pragmas(migrated)
    assert not prefect_schema.KEPT.create(file)


@pytest.mark.usefixtures("environment")
def test_a_database_with_tables_and_another_prefect_are_left_to_the_migrations(
    empty_prefect: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written into them."""
    prefect_schema.KEPT.keep(empty_prefect)
    used = tmp_path / "used.db"
    with closing(sqlite3.connect(used)) as database:
        database.execute("CREATE TABLE own (id)")
    assert not prefect_schema.KEPT.create(used)
    assert "flow_run" not in kept_schema.schema_of(used)
    monkeypatch.setattr(metadata, "version", lambda _: "0.1")
    assert not prefect_schema.KEPT.create(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_an_environment_that_may_not_be_written_is_no_obstacle(
    environment: Path, empty_prefect: Path
) -> None:
    """Nothing is kept there, and nothing fails."""
    environment.write_text("no folder")
    prefect_schema.KEPT.keep(empty_prefect)
    assert not prefect_schema.KEPT.file.exists()


@pytest.mark.usefixtures("environment")
@pytest.mark.slow
def test_the_second_new_database_needs_no_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, which migrations create, is kept and creates the next one."""
    from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

    created = _Recorded(prefect_schema.KEPT.create)
    monkeypatch.setattr(prefect_schema.KEPT.__class__, "create", lambda _, file: created(file))
    url = f"sqlite+aiosqlite:///{tmp_path / 'first.db'}"
    with temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: url}):
        prefect_database.upgrade()
        prefect_database.upgrade()
    assert created.answers == [False]
    assert prefect_schema.KEPT.create(tmp_path / "second.db")


class _Recorded:
    """A function whose answers are kept."""

    def __init__(self, function: Callable[[Path], bool]) -> None:
        self.function = function
        self.answers: list[bool] = []

    def __call__(self, file: Path) -> bool:
        """Return the answer of the function."""
        self.answers.append(self.function(file))
        return self.answers[-1]
