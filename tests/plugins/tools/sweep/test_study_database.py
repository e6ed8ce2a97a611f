"""A study in PostgreSQL, on which several machines work."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, RunError
from patchline.plugins.tools.sweep.space import SearchSpace, parse_dimension
from patchline.plugins.tools.sweep.study import Study, StudyIdentity, StudyOptions, open_study
from tests import postgres_server
from tests.postgres_server import PostgresServer


def _opened(postgres: PostgresServer, folder: Path, owner: str, high: str = "1e-2") -> Study:
    space = SearchSpace(
        dimensions={"optimizer.learning_rate": parse_dimension("lr", f"1e-4..{high}")}
    )
    identity = StudyIdentity(
        name="flowers-may", data_fingerprint="d", plan="p", space=space, rungs=(1, 3),
        parent_run_id=f"run of {owner}",
    )  # fmt: skip
    options = StudyOptions(
        owner=owner, storage=postgres.address("sweeps"), reduction=3, most_trials=8, sampler="tpe",
        seed=1,
    )  # fmt: skip
    return open_study(identity, folder, options)[0]


def test_machines_share_a_study(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has fallen silent is not waited for, and one with another space cannot join.

    An unfinished trial counts as alive for two minutes, whatever MLflow server its machine used.
    The trials of another space could not be compared. A database that is not there is named.
    """
    monkeypatch.setenv("PGPASSWORD", postgres_server.PASSWORD)
    with pytest.raises(RunError, match="cannot be used"):
        _opened(postgres, tmp_path, "a:run")
    postgres.sql(f"CREATE DATABASE sweeps OWNER {postgres_server.USER}")
    first, second = (_opened(postgres, tmp_path, f"{owner}:run") for owner in "ab")
    trial = second.next()
    assert trial is not None
    with trial.alive():
        assert [each.number for each in first.alive_elsewhere()] == [trial.record.number]
        assert second.alive_elsewhere() == []
    postgres.sql("UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour'", "sweeps")
    assert first.alive_elsewhere() == []
    resumed = _opened(postgres, tmp_path, "b:run").next()
    assert resumed is not None
    assert resumed.record.number == trial.record.number
    assert len(first.alive_elsewhere()) == 1  # it is back
    with pytest.raises(ConfigError, match="has other search space"):
        _opened(postgres, tmp_path, "d:run", high="1e-1")
