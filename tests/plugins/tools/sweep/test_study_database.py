"""A study in PostgreSQL, on which several machines work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, RunError
from patchline.plugins.tools.sweep.space import SearchSpace, parse_dimension
from patchline.plugins.tools.sweep.study import Study, StudyIdentity, StudyOptions, open_study
from tests import postgres_server
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """Return a server with the database of the searches."""
    postgres.sql(f"CREATE DATABASE sweeps OWNER {postgres_server.USER}")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PGPASSWORD", postgres_server.PASSWORD)
        yield postgres


def _opened(
    server: PostgresServer,
    folder: Path,
    owner: str,
    high: str = "1e-2",
    database: str = "sweeps",
) -> tuple[Study, StudyIdentity]:
    space = SearchSpace(
        dimensions={"optimizer.learning_rate": parse_dimension("lr", f"1e-4..{high}")}
    )
    identity = StudyIdentity(
        name="flowers-may", data_fingerprint="d", plan="p", space=space, rungs=(1, 3),
        parent_run_id=f"run of {owner}",
    )  # fmt: skip
    options = StudyOptions(
        owner=owner, storage=server.address(database), reduction=3, most_trials=8, sampler="tpe",
        seed=1,
    )  # fmt: skip
    return open_study(identity, folder, options)


def test_a_machine_that_has_fallen_silent_is_not_waited_for(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Its unfinished trial counts as alive for two minutes, whatever MLflow server it used."""
    server.sql("CREATE DATABASE silent OWNER " + postgres_server.USER)
    first, _ = _opened(server, tmp_path, "a:run", database="silent")
    second, _ = _opened(server, tmp_path, "b:run", database="silent")
    trial = second.next()
    assert trial is not None
    with trial.alive():
        assert [each.number for each in first.alive_elsewhere()] == [trial.record.number]
        assert second.alive_elsewhere() == []
    server.sql("UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour'", "silent")
    assert first.alive_elsewhere() == []
    again, _ = _opened(server, tmp_path, "b:run", database="silent")
    resumed = again.next()
    assert resumed is not None
    assert resumed.record.number == trial.record.number
    assert len(first.alive_elsewhere()) == 1  # it is back


def test_a_machine_with_another_space_cannot_join(server: PostgresServer, tmp_path: Path) -> None:
    """Its trials could not be compared."""
    _opened(server, tmp_path, "a:run")
    with pytest.raises(ConfigError, match="has other search space"):
        _opened(server, tmp_path, "d:run", high="1e-1")


def test_a_database_that_is_not_there_is_named(server: PostgresServer, tmp_path: Path) -> None:
    """With the reason and without a password."""
    server.sql("CREATE DATABASE gone")
    server.sql("DROP DATABASE gone")
    with pytest.raises(RunError, match="cannot be used"):
        _opened(server, tmp_path, "a:run", database="gone")
