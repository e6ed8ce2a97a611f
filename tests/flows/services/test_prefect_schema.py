"""A new Prefect database is created from SQL that an earlier one has left."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest
from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

from patchline.flows.prefect_api import prefect_database
from patchline.flows.prefect_api.prefect_schema import KEPT_SCHEMA
from patchline.pipeline.workspace.files import kept_schema


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a Python environment that holds nothing yet."""
    folder = tmp_path / "environment"
    monkeypatch.setattr(sys, "prefix", str(folder))
    return folder


def _assert_creates_the_same(database: Path, new: Path) -> None:
    """What is kept creates a file with the same tables and header, and only a new one."""
    assert KEPT_SCHEMA.create(new)
    assert kept_schema.schema_of(new) == kept_schema.schema_of(database)
    for name in ("auto_vacuum", "page_size", "application_id", "user_version", "encoding"):
        values = []
        for file in (database, new):
            with closing(sqlite3.connect(file)) as opened:
                values.append(opened.execute(f"PRAGMA {name}").fetchone())
        assert values[0] == values[1]
    assert not KEPT_SCHEMA.create(new)


@pytest.mark.slow
def test_the_second_new_database_needs_no_migration(tmp_path: Path) -> None:
    """The first one, which Prefect's migrations create in seconds, is kept and creates the next."""
    first = tmp_path / "first.db"
    url = f"sqlite+aiosqlite:///{first}"
    assert not KEPT_SCHEMA.create(first)
    with temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: url}):
        prefect_database.upgrade()
    _assert_creates_the_same(first, tmp_path / "second.db")


def test_only_a_new_database_of_the_same_prefect_is_created(
    empty_prefect: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with tables is left to the migrations, and so is that of another Prefect."""
    KEPT_SCHEMA.keep(empty_prefect)
    _assert_creates_the_same(empty_prefect, tmp_path / "quick.db")
    used = tmp_path / "used.db"
    with closing(sqlite3.connect(used)) as database:
        database.execute("CREATE TABLE own (id)")
    assert not KEPT_SCHEMA.create(used)
    assert "flow_run" not in kept_schema.schema_of(used)
    assert not KEPT_SCHEMA.is_in(used)
    assert KEPT_SCHEMA.is_in(empty_prefect)
    with closing(sqlite3.connect(shutil.copy(empty_prefect, tmp_path))) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    assert not KEPT_SCHEMA.is_in(tmp_path / empty_prefect.name)
    monkeypatch.setattr(metadata, "version", lambda _: "0.1")
    assert not KEPT_SCHEMA.create(tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()
