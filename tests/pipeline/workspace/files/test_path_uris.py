"""Paths as URIs: folders of any name hold MLflow's and Prefect's files, each where it belongs."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from patchline.flows.prefect_api import prefect_database
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.files import path_uris
from patchline.pipeline.workspace.tracking import tracking_store
from tests.conftest import PREFECT_DATABASE
from tests.patience import patient

NAMES = [
    "100%25", "a%", "#1", " trail ", "e\u0301🙂", "; @:\"'`$&|<>*!", "back\\slash", "new\nline",
    "\x1b[31m", ":memory:", "file:", "?uri=true", "%2e%2e", "x" * 240,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_store_works_in_a_folder_of_any_name(
    name: str, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact lies beside the database of its run and is found; nothing lies elsewhere.

    Prefect's driver, too, writes into the file in the workspace, not into one beside the folder.
    """
    folder = tmp_path / "around" / name
    folder.mkdir(parents=True)
    shutil.copy(empty_store, folder / "mlflow.db")
    (tmp_path / "note.txt").write_text("seen", encoding="utf-8")
    monkeypatch.chdir(folder)
    store = tracking_store.client()
    assert tracking_store.sqlite_file() == folder / "mlflow.db"
    run = store.create_run(store.create_experiment("roses"))
    store.log_artifact(run.info.run_id, str(tmp_path / "note.txt"), "sub")
    again = Path(store.download_artifacts(run.info.run_id, "sub/note.txt"))
    assert again.read_text("utf-8") == "seen"
    [file] = (folder / "mlruns").rglob("note.txt")
    assert path_uris.artifact_path(run.info.artifact_uri) == file.parents[1]
    monkeypatch.delenv(PREFECT_DATABASE)
    url = prefect_database.environment()[PREFECT_DATABASE]
    asyncio.run(_connect(url))
    database = folder / ".patchline" / "prefect.db"
    assert path_uris.sqlite_path(url) == database
    assert database.stat().st_size > 0
    assert {each.name for each in folder.iterdir()} == {".patchline", "mlflow.db", "mlruns"}
    assert [each.name for each in folder.parent.iterdir()] == [name]


async def _connect(url: str) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("create table roses (name text)"))
    await engine.dispose()


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_path_comes_back_from_its_uri(name: str) -> None:
    """Every path is the one that its URIs name, with options or without."""
    file = Path("/data") / name.replace("/", "_")
    uri = path_uris.sqlite_uri(file)
    assert path_uris.sqlite_path(uri) == file
    assert path_uris.sqlite_path(path_uris.with_options(uri, timeout=int(patient(60)))) == file
    assert path_uris.sqlite_path(path_uris.sqlite_uri(file, asynchronous=True)) == file
    assert path_uris.artifact_path(path_uris.artifact_uri(file)) == file


def test_ordinary_paths_are_written_as_mlflow_writes_them() -> None:
    """So that `mlflow` commands take what Patchline prints, and the other way round."""
    file = Path("/data/My roses, 2024/mlflow.db")
    assert path_uris.sqlite_uri(file) == "sqlite:////data/My roses, 2024/mlflow.db"
    assert path_uris.artifact_uri(file.parent) == "/data/My roses, 2024"


@pytest.mark.parametrize("uri", ["postgresql://host/db", "sqlite://", "s3://b/a"])
def test_other_stores_have_no_file(uri: str) -> None:
    """A server or a database elsewhere is not taken for a path."""
    assert path_uris.sqlite_path(uri) is None
    assert path_uris.artifact_path(uri) is None


def test_a_name_that_is_not_unicode_is_refused_in_one_sentence() -> None:
    """MLflow and Prefect cannot store it, and would write beside the folder."""
    with pytest.raises(
        ConfigError, match=r"caf\\xe9/mlflow.db' is not valid UTF-8.*Rename the folder"
    ):
        path_uris.sqlite_uri(Path("/data") / os.fsdecode(b"caf\xe9") / "mlflow.db")
