"""Rewrite the paths inside a folder that was moved or copied: in databases, records and settings.

A value is rewritten where it is the folder itself or a path inside it, as a plain path or as a
`file:` or SQLite URI; nothing else is touched.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import yaml

from patchline.pipeline.workspace.files.paths import (
    artifact_path,
    artifact_uri,
    map_texts,
    sqlite_path,
    sqlite_uri,
)
from patchline.pipeline.workspace.files.workspace_identity import LABEL
from patchline.pipeline.workspace.tracking.tracked_run import DATA_ROOT_TAG, FOLDER_TAG

_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)
"""Where MLflow stores the place of artifacts."""
_TAGS = (FOLDER_TAG, DATA_ROOT_TAG)
_PREFECT = (
    ("deployment", ("parameters", "infra_overrides", "labels", "pull_steps")),
    ("automation", ("trigger", "actions", "actions_on_trigger", "actions_on_resolve")),
    ("flow_run", ("parameters", "job_variables", "labels")),
)
"""JSON in Prefect's tables that says where scheduled work is done."""
_BUSY_SECONDS = 60.0
Rewrite = Callable[[str], str]


def between(old: Path, new: Path) -> Rewrite:
    """Return the function that turns a path inside `old` into the one inside `new`."""

    def rewrite(value: str) -> str:
        database = sqlite_path(value)
        path = database or artifact_path(value)
        if path is None or not path.is_relative_to(old):
            return value
        if new.is_relative_to(old) and path.is_relative_to(new):
            return value  # a copy inside the original: it leads to the copy already
        moved = new / path.relative_to(old)
        if database:
            return sqlite_uri(moved)
        return artifact_uri(moved) if value.startswith("file:") else str(moved)

    return rewrite


def location(rewrite: Rewrite) -> Rewrite:
    """Return the function for artifact locations, in the form that MLflow needs for their path."""

    def rewritten(value: str) -> str:
        changed = rewrite(value)
        path = artifact_path(changed) if changed != value else None
        return changed if path is None else artifact_uri(path)

    return rewritten


def rewrite_mlflow(database: Path, rewrite: Rewrite) -> int:
    """Rewrite the places of artifacts and the folders of runs, in one transaction.

    Returns:
        How many artifact locations were changed.

    Raises:
        sqlite3.Error: if the database is damaged, or stays locked; nothing is changed then.
    """
    with _open_database(database) as (store, tables):
        changed = 0
        for table, column in _LOCATIONS:
            if column in tables.get(table, ()):
                changed += _rewrite_column(store, table, column, location(rewrite))
        where = f"key IN ({', '.join('?' for _ in _TAGS)})"
        _rewrite_column(store, "tags", "value", rewrite, where, _TAGS)
        _rewrite_column(store, "params", "value", rewrite)  # `data.path`, which a resumed run logs
    return changed


def rewrite_prefect(database: Path, rewrite: Rewrite) -> None:
    """Rewrite the folders that schedules, their automations and their due runs name.

    Raises:
        sqlite3.Error: if the database is damaged, or stays locked; nothing is changed then.
    """
    with _open_database(database) as (store, tables):
        for table, columns in _PREFECT:
            unfinished = "state_type IN ('SCHEDULED', 'PAUSED')" if table == "flow_run" else "1"
            for column in set(columns) & set(tables.get(table, ())):
                _rewrite_column(store, table, column, _of_json(rewrite), unfinished)


def claim_prefect(database: Path, folder: Path, identity: str) -> None:
    """Make the schedules that a Prefect database has for a folder those of one workspace.

    Args:
        database: the database, copied with the workspace or used by it alone.
        folder: the folder of the workspace.
        identity: the new id of the workspace.

    Raises:
        sqlite3.Error: if the database is damaged, or stays locked; nothing is changed then.
    """
    with _open_database(database) as (store, tables):
        if "labels" not in tables.get("deployment", ()):
            return
        rows = store.execute("SELECT labels FROM deployment WHERE labels IS NOT NULL").fetchall()
        labels = [json.loads(row[0]) or {} for row in rows]
        here = [each for each in labels if str(folder) in each.values()]
    earlier = {each[LABEL] for each in here if LABEL in each}
    rewrite_prefect(database, lambda value: identity if value in earlier else value)


def rewrite_text(file: Path, rewrite: Rewrite) -> str | None:
    """Return the text of a JSON or YAML file with rewritten paths; none if nothing changes."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            changed = _of_json(rewrite)(text)
        else:
            content = yaml.safe_load(text)
            walked = map_texts(content, rewrite)
            changed = text if walked == content else yaml.safe_dump(walked, sort_keys=False)
    except (OSError, ValueError, yaml.YAMLError):
        return None  # what cannot be read stays as it is
    return None if changed == text else changed


def _of_json(rewrite: Rewrite) -> Rewrite:
    def rewritten(text: str) -> str:
        try:
            content = json.loads(text)
        except ValueError:
            return text
        walked = map_texts(content, rewrite)
        if walked == content:
            return text
        indent = 2 if "\n" in text.strip() else None
        return json.dumps(walked, indent=indent, ensure_ascii=False)

    return rewritten


def _rewrite_column(
    store: sqlite3.Connection,
    table: str,
    column: str,
    rewrite: Rewrite,
    where: str = "1",
    values: Iterable[str] = (),
) -> int:
    """Rewrite a column row by row; the names are those of this module, not of a user."""
    rows = store.execute(
        f'SELECT rowid, "{column}" FROM "{table}" WHERE {where} AND "{column}" IS NOT NULL',  # noqa: S608
        tuple(values),
    ).fetchall()
    changes = [(new, row) for row, old in rows if (new := rewrite(str(old))) != str(old)]
    store.executemany(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', changes)  # noqa: S608
    return len(changes)


@contextmanager
def _open_database(database: Path) -> Iterator[tuple[sqlite3.Connection, dict[str, list[str]]]]:
    """Yield a database in a transaction, and the columns of its tables."""
    with closing(sqlite3.connect(database, timeout=_BUSY_SECONDS)) as store, store:
        store.execute("BEGIN IMMEDIATE")
        names = store.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = "SELECT name FROM pragma_table_info(?)"
        yield (
            store,
            {name: [str(row[0]) for row in store.execute(columns, (name,))] for (name,) in names},
        )
