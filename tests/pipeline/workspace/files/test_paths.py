"""Paths as URIs, with a user's folder, and from elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from patchline.flows.prefect_api import prefect_database
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.training.initial_weights.recipe import is_file
from patchline.pipeline.workspace.files import paths
from patchline.pipeline.workspace.files.paths import safe_join
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
    (tmp_path / "note.txt").write_text("seen", "utf-8")
    monkeypatch.chdir(folder)
    store = tracking_store.client()
    assert tracking_store.sqlite_file() == folder / "mlflow.db"
    run = store.create_run(store.create_experiment("roses"))
    store.log_artifact(run.info.run_id, str(tmp_path / "note.txt"), "sub")
    again = Path(store.download_artifacts(run.info.run_id, "sub/note.txt"))
    assert again.read_text("utf-8") == "seen"
    [file] = (folder / "mlruns").rglob("note.txt")
    assert paths.artifact_path(run.info.artifact_uri) == file.parents[1]
    monkeypatch.delenv(PREFECT_DATABASE)
    url = prefect_database.environment()[PREFECT_DATABASE]
    asyncio.run(_connect(url))
    database = folder / ".patchline" / "prefect.db"
    assert paths.sqlite_path(url) == database
    assert database.stat().st_size > 0
    assert {each.name for each in folder.iterdir()} == {".patchline", "mlflow.db", "mlruns"}
    assert [each.name for each in folder.parent.iterdir()] == [name]


async def _connect(url: str) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("create table roses (name text)"))
    await engine.dispose()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_path_comes_back_from_its_uri(name: str) -> None:
    """Every path is the one that its URIs name, with options or without."""
    file = Path("/data") / name.replace("/", "_")
    uri = paths.sqlite_uri(file)
    assert paths.sqlite_path(uri) == file
    assert paths.sqlite_path(paths.with_options(uri, timeout=int(patient(60)))) == file
    assert paths.sqlite_path(paths.sqlite_uri(file, asynchronous=True)) == file
    assert paths.artifact_path(paths.artifact_uri(file)) == file


def test_ordinary_paths_are_written_as_mlflow_writes_them() -> None:
    """So that `mlflow` commands take what Patchline prints, and the other way round."""
    file = Path("/data/My roses, 2024/mlflow.db")
    assert paths.sqlite_uri(file) == "sqlite:////data/My roses, 2024/mlflow.db"
    assert paths.artifact_uri(file.parent) == "/data/My roses, 2024"


@pytest.mark.parametrize("uri", ["postgresql://host/db", "sqlite://", "s3://b/a"])
def test_other_stores_have_no_file(uri: str) -> None:
    """A server or a database elsewhere is not taken for a path."""
    assert paths.sqlite_path(uri) is None
    assert paths.artifact_path(uri) is None


def test_a_name_that_is_not_unicode_is_refused_in_one_sentence() -> None:
    """MLflow and Prefect cannot store it, and would write beside the folder."""
    with pytest.raises(
        ConfigError, match=r"caf\\xe9/mlflow.db' is not valid UTF-8.*Rename the folder"
    ):
        paths.sqlite_uri(Path("/data") / os.fsdecode(b"caf\xe9") / "mlflow.db")


_PARTS = st.one_of(
    st.sampled_from(["", ".", "..", "a", "b.txt", "C:", "~", "\0", "link", "x" * 300, "\ud800"]),
    st.text(max_size=8),
)
_PATHS = st.lists(st.tuples(_PARTS, st.sampled_from("/\\")), max_size=6).map(
    lambda pairs: "".join(part + separator for part, separator in pairs).rstrip("\n")
)


@given(path=st.one_of(_PATHS, _PATHS.map(lambda path: path[:-1])))
def test_what_is_accepted_is_a_file_below_the_folder(path: str) -> None:
    """On any system, and whatever the path is made of; another one is one sentence."""
    folder = Path("/nowhere/folder")
    try:
        file = safe_join(folder, path, "s3://bucket/team")
    except DataError as error:
        assert str(error).startswith("s3://bucket/team names the path ")  # noqa: PT017 - a property
        return
    normal = os.path.normpath(file)
    assert normal == str(file) == f"{folder}/{path}"
    assert normal.startswith(f"{folder}/")
    on_windows = PureWindowsPath(path)
    assert not on_windows.drive
    assert not on_windows.root
    assert ".." not in on_windows.parts
    assert max(map(len, os.fsencode(path).split(b"/"))) <= 255


@given(
    path=st.lists(
        st.text("ab .-é", min_size=1).filter(lambda each: each not in ". .."),
        min_size=1,
        max_size=3,
    )
)
def test_an_ordinary_path_is_accepted(path: list[str]) -> None:
    """Spaces, accents, and names that begin with dots are no reason to refuse one."""
    names = [each for each in path if each not in (".", "..")] or ["a"]
    assert safe_join(Path("/nowhere"), "/".join(names), "x") == Path("/nowhere", *names)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "leads out of its folder"),
        ("a\\..\\..\\x", "leads out of its folder"),
        ("/etc/passwd", "is absolute"),
        ("C:\\x", "begins like a drive"),
        ("a/./b", r"or '\.'"),
        ("a\0b", "has a null byte"),
        ("x" * 256, "is longer than a file system takes"),
        ("a/" * 2100 + "a", "is longer than a file system takes"),
        ("link/x", "leads out of .* through a link"),
        ("loop/x", "leads out of .* through a link"),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, path: str, reason: str) -> None:
    """The sentence says what names the path, and why it is refused."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "loop").symlink_to("/proc/self/cwd")
    with pytest.raises(DataError, match=f"The record names the path .*{reason}"):
        safe_join(folder, path, "The record")


def test_links_that_stay_in_the_folder_are_followed(tmp_path: Path) -> None:
    """Also those above it, such as a folder of the workspace on another disk."""
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "disk/inside").symlink_to("a")
    (tmp_path / "folder").symlink_to("disk")
    assert safe_join(tmp_path / "folder", "inside/x", "x") == tmp_path / "folder/inside/x"


def test_an_unknown_user_is_named_with_the_setting(photos: Path, tmp_path: Path) -> None:
    """Of the data, of the table of excluded files, and of the initial weights."""
    rule = "there is no user 'no-such-user'. Check the path"
    with pytest.raises(ConfigError, match=f"data.path is ~no-such-user/photos, but {rule}"):
        ingest(validate_config({"data": {"path": "~no-such-user/photos"}}), tmp_path)
    table = {"path": str(photos), "exclude": "~no-such-user/findings.csv"}
    with pytest.raises(ConfigError, match=f"data.exclude is .*, but {rule}"):
        ingest(validate_config({"data": table}), tmp_path)
    with pytest.raises(ConfigError, match=f"model.init is .*, but {rule}"):
        is_file("~no-such-user/vit.safetensors")
