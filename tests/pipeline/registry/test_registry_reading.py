"""The tables of a registry tell what MLflow's client tells, without its import."""

from __future__ import annotations

import pytest

from patchline.pipeline.registry.registry_reading import open_registry
from patchline.pipeline.workspace.tracking.tracking_store import client, use_store
from tests.postgres_server import PASSWORD, USER, PostgresServer


def _check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register all kinds of things, and compare."""
    store = client()
    run_id = store.create_run(store.create_experiment("pets")).info.run_id
    for key, value in (("test/accuracy", 0.5), ("test/ece", float("nan")), ("train/loss", 1.0)):
        store.log_metric(run_id, key, value)
    for name in ("pets", "other", "empty"):
        store.create_registered_model(name, tags={"a tag": name})
    store.create_registered_model("prompt")
    store.set_registered_model_tag("prompt", "mlflow.prompt.is_prompt", "true")
    for source in ("/one", "/two", "/three"):
        store.create_model_version("pets", source, run_id, tags={"source": source})
    store.create_model_version("other", "/other")
    store.delete_model_version("pets", "3")
    store.set_registered_model_alias("pets", "champion", "2")
    read = open_registry()
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", use_store())
    asked = open_registry()
    assert type(read) is not type(asked)
    assert read.names() == asked.names() == ["empty", "other", "pets"]
    for name in ("pets", "other", "empty", "nobody"):
        assert read.model(name) == asked.model(name)
        assert read.versions(name) == asked.versions(name)
        for version in ("1", "2", "3"):
            assert read.place_of(name, version) == asked.place_of(name, version)
    assert [each.version for each in read.versions("pets")] == [2, 1]
    for each in (run_id, ""):
        assert repr(read.test_metrics(each)) == repr(asked.test_metrics(each))
    assert read.test_metrics(run_id).keys() == {"test/accuracy", "test/ece"}


@pytest.mark.usefixtures("own_store")
def test_a_sqlite_file_is_read_as_by_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted versions and prompts are left out."""
    _check(monkeypatch)


@pytest.mark.slow
def test_postgresql_is_read_as_by_mlflow(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in the database of a team."""
    postgres.sql(f"CREATE DATABASE registry_reading OWNER {USER}")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.address("registry_reading"))
    _check(monkeypatch)
