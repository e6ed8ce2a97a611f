"""Archives of workspaces: written during runs, verified, restored elsewhere."""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from patchline.flows.commands import workspace as commands
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace.relocation import following, workspace_archive
from patchline.pipeline.workspace.tracking import team_stores, tracking_store
from patchline.pipeline.workspace.tracking.team_stores import TeamStores
from patchline.pipeline.workspace.workspace import CACHE_FILE
from tests.patience import patient
from tests.pipeline.workspace.relocation.test_relocation import used_folder


def _silent(label: str, done: int, total: int) -> None:
    assert 0 <= done <= total, label


@pytest.fixture
def workspace(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a workspace with a run, and with files that do and do not belong to its archive."""
    folder = tmp_path / "why? 100%25"
    inside = used_folder(folder, empty_store, monkeypatch)
    for name in (
        "splits/a.parquet", "prepared/1/images.npy", "services/secret", "services/login.env",
        "live/1.json", "runs/1/worker.log", "runs/1/request.json", "prefect.key",
    ):  # fmt: skip
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_text(f"{name} text", "utf-8")
    with closing(sqlite3.connect(inside / "prefect.db")) as store, store:
        store.execute("CREATE TABLE block_document (data TEXT)")
        store.execute("INSERT INTO block_document VALUES ('hooks.example.org/topsecret')")
    return folder


@pytest.mark.parametrize("record", [True, False])
def test_a_restored_workspace_works_where_the_first_is_gone(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, record: bool
) -> None:
    """Runs and artifacts are found under another path, with the old one removed.

    What signs in to servers, posts to webhooks or is made again is not in the archive.
    """
    if not record:
        (workspace / ".patchline" / "workspace.json").unlink()
    file, target = tmp_path / "a.tar", tmp_path / "new place #2"
    contents = workspace_archive.export(workspace, file, _silent)
    assert (contents.runs, contents.models, contents.outside) == (1, 0, 0)
    assert file.stat().st_mode & 0o077 == 0
    content = file.read_bytes()
    for secret in (b"topsecret", b"services/secret text", b"prefect.key text"):
        assert secret not in content
    workspace_archive.export(workspace, tmp_path / "b.tar", _silent, caches=True)
    with tarfile.open(file) as first, tarfile.open(tmp_path / "b.tar") as second:
        names, more = set(first.getnames()), set(second.getnames())
    assert more - names == {".patchline/prepared/1/images.npy"}
    assert {"mlflow.db", ".patchline/prefect.db", ".patchline/runs/1/request.json"} <= names
    assert not [name for name in names if name.endswith((".lock", ".log")) or "live/" in name]
    with pytest.raises(ConfigError, match="is not an empty folder"):
        workspace_archive.restore(file, workspace, _silent)
    shutil.rmtree(workspace)
    workspace_archive.restore(file, target, _silent)
    monkeypatch.chdir(target)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    following.follow()
    [run] = tracking_store.all_runs("")
    note = Path(tracking_store.client().download_artifacts(run.info.run_id, "note.txt"))
    assert note.read_text("utf-8") == "seen"
    assert (target / ".patchline/splits/a.parquet").read_text("utf-8") == "splits/a.parquet text"
    assert not workspace.exists()


def test_an_archive_written_during_a_run_is_whole(workspace: Path, tmp_path: Path) -> None:
    """SQLite's backup takes each database at one moment, whatever is written meanwhile."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with (
                closing(sqlite3.connect(workspace / "mlflow.db", timeout=patient(60))) as store,
                store,
            ):
                for key in ("a", "b"):
                    insert = "INSERT INTO experiment_tags VALUES (?, ?, 0)"
                    store.execute(insert, (f"{key}{number}", "1"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            workspace_archive.export(workspace, tmp_path / f"{number}.tar", _silent)
    finally:
        stop.set()
        writer.join()
    workspace_archive.restore(tmp_path / "2.tar", tmp_path / "again", _silent)
    with closing(sqlite3.connect(tmp_path / "again" / "mlflow.db")) as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        [[count]] = store.execute("SELECT count(*) FROM experiment_tags").fetchall()
    assert count > 0
    assert count % 2 == 0  # no transaction is there by half


@pytest.mark.parametrize("name", ["a.tar", "why? 100%25/mlruns/b.tar", "no/b.tar", "c.tar"])
def test_an_archive_is_never_overwritten_nor_put_into_itself(
    workspace: Path, tmp_path: Path, name: str
) -> None:
    """Each in one sentence, before anything is written."""
    (tmp_path / "a.tar").write_text("mine", "utf-8")
    words = {
        "a.tar": r"a\.tar exists",
        "no/b.tar": r"does not exist\. Create it first",
        "c.tar": "holds no workspace",
    }.get(name, "inside what it archives")
    source = tmp_path if name == "c.tar" else workspace
    with pytest.raises(ConfigError, match=words):
        workspace_archive.export(source, tmp_path / name, _silent)
    assert (tmp_path / "a.tar").read_text("utf-8") == "mine"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_archive_writes_nothing(workspace: Path, tmp_path: Path, damage: str) -> None:
    """Every digest is verified before the folder appears."""
    file = tmp_path / "a.tar"
    workspace_archive.export(workspace, file, _silent)
    data = file.read_bytes()
    if damage == "flipped":
        data = data.replace(b"splits/a.parquet text", b"splits/b.parquet text")
    else:
        data = data[: len(data) // 2 if damage == "cut" else 0]
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.tar cannot be restored .* Nothing was written"):
        workspace_archive.restore(file, tmp_path / "again", _silent)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.tar", workspace.name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mlruns/evil", tarfile.SYMTYPE),
        ("mlruns/evil", tarfile.CHRTYPE),
        ("/tmp/evil", tarfile.REGTYPE),  # noqa: S108 - it is refused
        ("mlruns/../../evil", tarfile.REGTYPE),
        ("images/evil.png", tarfile.REGTYPE),
        ("mlruns/" + 300 * "x", tarfile.REGTYPE),
    ],
)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    """Links, devices, paths that lead elsewhere and names that no disk takes become no files."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(info)
    with pytest.raises(DataError, match="cannot be restored"):
        workspace_archive.restore(tmp_path / "a.tar", tmp_path / "again", _silent)
    assert [each.name for each in tmp_path.iterdir()] == ["a.tar"]
    for path in ("mlflow.db", "mlruns/1/a b?/x", ".patchline/runs/1/request.json"):
        assert workspace_archive.member_refusal(path) is None
    for path in ("", ".", "a\0b", "mlruns//x", "./mlflow.db", "mlruns\\x", "x/mlflow.db"):
        assert workspace_archive.member_refusal(path)


def test_runs_of_a_store_elsewhere_are_said_to_be_missing(
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server of the user, or a team's database; so are results on an object store alone."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://anna:hunter22@mlflow.example.org")
    cache = workspace / ".patchline" / CACHE_FILE
    cache.write_text('{"uri": "s3://flowers/team"}', "utf-8")
    commands.export(tmp_path / "a.tar")
    said = " ".join(capsys.readouterr().out.split())
    assert "Runs and registered models of https://mlflow.example.org, where this" in said
    assert "caches the workspace s3://flowers/team: splits, checkpoints and results" in said
    assert "hunter22" not in said
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert workspace_archive.store_elsewhere(workspace) is None
    database = "postgresql://patchline@db.example.org/flowers"
    team_stores.remember(workspace, TeamStores(database=database))
    assert workspace_archive.store_elsewhere(workspace) == database
