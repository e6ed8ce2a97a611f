"""The tags of the tasks of a run, which a team limits."""

from __future__ import annotations

import contextlib
import json
import sqlite3

from tests.conftest import Run


def test_the_task_that_trains_has_tags_and_the_others_have_none(finished_run: Run) -> None:
    """A limit on `training` or `gpu` leaves the other stages alone."""
    file = f"file:{finished_run.folder / 'prefect.db'}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(file, uri=True)) as database:
        rows = database.execute("SELECT name, tags FROM task_run").fetchall()
    tags = {name: set(json.loads(tags)) for name, tags in rows}
    training = [name for name in tags if name.startswith("Train ")]
    assert len(training) == 1
    assert "training" in tags.pop(training[0])
    assert len(tags) > 3
    assert not {"training", "gpu"} & set().union(*tags.values())
