"""A new MLflow database is created from SQL that an earlier one has left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mlflow.store.db import utils

from patchline.pipeline.errors import TrackingError
from patchline.pipeline.workspace.files.kept_schema import schema_of
from patchline.pipeline.workspace.tracking import mlflow_schema, tracking_store


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the SQL that an environment without it gets from MLflow's own migrations."""
    folder = tmp_path_factory.mktemp("migrated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "prefix", str(folder))
        mlflow_schema.create_database(folder / "mlflow.db")
        assert schema_of(folder / "mlflow.db") == mlflow_schema.KEPT.file.read_text("utf-8")
    return schema_of(folder / "mlflow.db")


@pytest.fixture(autouse=True)
def environment(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and return the file of the SQL in a Python environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    mlflow_schema.KEPT.file.parent.mkdir(parents=True)
    mlflow_schema.KEPT.file.write_text(kept, "utf-8")
    return mlflow_schema.KEPT.file


def test_a_store_of_kept_sql_needs_no_migration(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps runs and models, and has the tables that the migrations lead to."""
    monkeypatch.setattr(utils, "_upgrade_db", None)
    client = tracking_store.client()
    run = client.create_run(client.create_experiment("digits"))
    client.log_metric(run.info.run_id, "loss", 0.5)
    client.create_registered_model("digits")
    default = client.get_experiment("0")
    assert str(tmp_path) in str(default.artifact_location)
    lines = schema_of(tmp_path / "mlflow.db").splitlines()
    tables = [line for line in lines if not line.startswith("INSERT")]
    assert tables == [line for line in kept.splitlines() if not line.startswith("INSERT")]
    rows = {line.split('"')[1] for line in kept.splitlines() if line.startswith("INSERT")}
    assert rows == {"alembic_version", "workspaces"}  # nothing of the folder that it was kept from


def test_sql_of_another_mlflow_is_no_store(environment: Path, kept: str) -> None:
    """MLflow compares the version of the tables with its own, and says so."""
    [version] = kept.split('INSERT INTO "alembic_version" VALUES(\'')[1:]
    environment.write_text(kept.replace(version[:12], "0" * 12), "utf-8")
    with pytest.raises(TrackingError, match="schema"):
        tracking_store.client()
