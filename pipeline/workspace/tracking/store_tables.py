"""The tables of an MLflow store, read in SQL: MLflow's import takes seconds and much memory."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from patchline.pipeline.errors import PipelineError, ServerAwayError, first_line
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.workspace.files.paths import sqlite_path

_READING_SECONDS = 10.0
_DATABASES = re.compile(r"^(postgresql|mysql|mssql|sqlite)")
_NO_TABLE = re.compile(r"(relation|table) .*(does not|doesn't) exist", re.IGNORECASE)
_MOST_VALUES = 3
_RUNNING = "SELECT run_uuid FROM runs WHERE status = 'RUNNING' AND lifecycle_stage = 'active'"


class Tables(ABC):
    """The tables of a store in a database."""

    @abstractmethod
    def rows(self, question: str, *values: object) -> list[Any]:
        """Return the rows that answer a question; none if the tables are not there.

        Args:
            question: SQL with `{0}`, `{1}` and `{2}` in the place of values.
            values: the values.

        Raises:
            ServerAwayError: if the store does not answer.
        """


def open_tables(uri: str) -> Tables | None:
    """Return the tables of a store; None if it is no database, such as an MLflow server.

    Args:
        uri: the absolute URI of the store.
    """
    file = sqlite_path(uri)
    if file is not None:
        return _SqliteFile(file)
    return _Database(uri) if _DATABASES.match(uri) else None


def may_have_open_runs(uri: str) -> bool:
    """Return whether a run in a store may be open; false only if the tables are read and have none.

    Args:
        uri: the absolute URI of the store.
    """
    with contextlib.suppress(PipelineError, ImportError):  # MLflow tells the reason
        tables = open_tables(uri)
        return tables is None or bool(tables.rows(_RUNNING))
    return True


def make_away_error(uri: str, error: Exception) -> ServerAwayError:
    """Return the error for a store that does not answer, without credentials.

    Args:
        uri: the URI of the store.
        error: what failed.
    """
    return ServerAwayError(
        f"The MLflow store {redact_text(uri)} does not answer ({first_line(error)}). Check "
        "MLFLOW_TRACKING_URI and the server."
    )


class _SqliteFile(Tables):
    """A SQLite store, which is opened for each question: it may be replaced meanwhile."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def rows(self, question: str, *values: object) -> list[Any]:
        if not self._file.is_file():
            raise make_away_error(str(self._file), FileNotFoundError("there is no such file"))
        try:
            connection = sqlite3.connect(self._file, timeout=_READING_SECONDS)
            with contextlib.closing(connection):
                return connection.execute(question.format(*"?" * _MOST_VALUES), values).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                return []
            raise make_away_error(str(self._file), error) from error


class _Database(Tables):
    """A database server."""

    def __init__(self, uri: str) -> None:
        import sqlalchemy

        self._uri = uri
        self._engine = sqlalchemy.create_engine(uri, pool_pre_ping=True, pool_size=1)

    def rows(self, question: str, *values: object) -> list[Any]:
        import sqlalchemy

        names = [f"value_{position}" for position in range(_MOST_VALUES)]
        text = sqlalchemy.text(question.format(*(f":{each}" for each in names)))
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(text, dict(zip(names, values, strict=False))))
        except sqlalchemy.exc.ProgrammingError as error:
            if _NO_TABLE.search(first_line(error)):
                return []
            raise make_away_error(self._uri, error) from error
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            raise make_away_error(self._uri, error) from error
