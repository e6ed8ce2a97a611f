"""The empty database of the installed MLflow, as SQL, kept as in `kept_schema`.

`python -m patchline.pipeline.workspace.tracking.mlflow_schema` keeps it before any command does.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from patchline.pipeline.workspace.files.kept_schema import KeptSchema
from patchline.pipeline.workspace.files.paths import sqlite_uri

KEPT = KeptSchema("mlflow")


def create_database(database: Path) -> None:
    """Create the tables of a SQLite store that is new; nobody else may use the file meanwhile.

    What fails here, MLflow does itself when the store is opened, and tells the reason. It also adds
    what is no table, such as the default experiment, and refuses tables of another version.
    """
    if database.exists() and database.stat().st_size:
        return
    with suppress(sqlite3.Error):
        if KEPT.create(database):
            return
    with suppress(Exception):
        migrate(database)
        KEPT.keep(database)


def migrate(database: Path) -> None:
    """Create the tables by MLflow's own migrations, as it does for a new store."""
    from mlflow.store.db import utils

    functions: Any = utils  # without annotations
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    engine = functions.create_sqlalchemy_engine(sqlite_uri(database))
    try:
        functions._initialize_tables(engine)  # noqa: SLF001 - what opening a new store calls
    finally:
        engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        create_database(Path(folder) / "new.db")
