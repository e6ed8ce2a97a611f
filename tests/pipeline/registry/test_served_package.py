"""Aliases and packages are found without MLflow, in every store that MLflow keeps models in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchline.pipeline.errors import ModelReferenceError, ServerAwayError, TrackingError
from patchline.pipeline.registry.served_package import fetch_served_package, registry_reader
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.chosen import open_store
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.object_server import ObjectServer
from tests.pipeline.registry.made_versions import made_package
from tests.pipeline.registry.serving.served import NAME, Registry, made_registry, png, serving
from tests.postgres_server import PASSWORD, USER, PostgresServer


def _check(registry: Registry) -> None:
    """Register versions, and compare what the reader finds with what MLflow was given."""
    first = registry.add(1)
    second = registry.add(2, alias="challenger")
    reader = registry_reader()
    assert reader.version_of(NAME, "champion") == first
    assert reader.version_of(NAME, "challenger") == second
    assert reader.version_of(NAME, "nobody") is None
    assert reader.version_of("it's; DROP TABLE", "champion") is None
    assert reader.place_of(NAME, "9") is None
    client().set_model_version_tag(NAME, first, "a tag", "value")
    assert reader.tag_of(NAME, first, "a tag") == "value"
    assert reader.tag_of(NAME, second, "a tag") is None
    assert reader.artifacts_of(NAME, first) is None  # no run made it
    folder = fetch_served_package(reader, NAME, first)
    assert folder == registry.folder / "packages" / "1"
    registry.point("champion", second)
    assert reader.version_of(NAME, "champion") == second
    client().delete_model_version(NAME, first)
    assert reader.place_of(NAME, first) is None
    with pytest.raises(ModelReferenceError, match="has no version 1"):
        fetch_served_package(reader, NAME, first)
    shutil.rmtree(registry.folder / "packages" / "2")
    with pytest.raises(ModelReferenceError, match="are gone"):
        fetch_served_package(reader, NAME, second)


def test_a_sqlite_file_is_read(tmp_path: Path, empty_store: Path) -> None:
    """The store in the working directory, which is everybody's at first."""
    _check(made_registry(tmp_path, empty_store))


@pytest.mark.slow
def test_postgresql_is_read(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database of a team, asked directly."""
    postgres.sql(f"CREATE DATABASE registry_reader OWNER {USER}")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.address("registry_reader"))
    _check(Registry(tmp_path))


def test_a_registry_of_its_own_is_read(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`MLFLOW_REGISTRY_URI` names another store for models than for runs."""
    made_registry(tmp_path, empty_store).add(1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ServerAwayError, match="there is no such file"):
        registry_reader().version_of(NAME, "champion")
    assert list(elsewhere.iterdir()) == []  # none appears by asking
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert registry_reader().version_of(NAME, "champion") == "1"


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("http://127.0.0.1:9", ServerAwayError),
        ("postgresql://nobody@127.0.0.1:9/nothing", ServerAwayError),
        ("databricks://somewhere", TrackingError),
    ],
)
def test_a_store_that_is_away_is_one_sentence(
    uri: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens there, or nobody but MLflow can read it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(error):
        registry_reader().version_of(NAME, "champion")


@pytest.mark.slow
def test_a_package_on_an_object_store_is_served_from_the_cache(
    tmp_path: Path,
    empty_store: Path,
    objects: ObjectServer,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a shared workspace, a package is downloaded once, by a process of its own."""
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", objects.url)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    place, package = f"s3://{bucket}/package", tmp_path / "package"
    made_package(package / "artifacts")
    there = open_store(parse_address(place, "-"))
    for file in package.glob("artifacts/*"):
        there.upload(file, file.relative_to(package).as_posix())
    shutil.rmtree(package)
    store = client()
    store.create_registered_model(NAME)
    store.create_model_version(NAME, source=place)
    store.set_registered_model_alias(NAME, "champion", "1")
    with serving(tmp_path, "--workspace", f"s3://{bucket}/team") as server:
        assert server.predict(png(1)).json["version"] == "1"
    [cached] = (tmp_path / ".patchline" / "served").glob("[!.]*")
    assert (cached / "artifacts" / "model.onnx").is_file()
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    assert fetch_served_package(registry_reader(), NAME, "1").samefile(cached)
