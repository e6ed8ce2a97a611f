"""The cache of a shared workspace stays below its limit; what is used stays longest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.workspace import cache
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.object_store import FolderStore
from patchline.pipeline.workspace.workspace import workspace_of
from tests.pipeline.workspace.machines import machine

_BYTES, _DATA = 40_960, "sources/objects"


def fill(workspace: Path, path: str, age: float) -> Path:
    """Write an entry of the cache that was last used some seconds ago."""
    folder = workspace / path
    folder.mkdir(parents=True)
    (folder / "images.npy").write_bytes(os.urandom(_BYTES))
    used = time.time() - age
    os.utime(folder, (used, used))
    return folder


def test_what_was_not_used_for_longest_goes(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kind of entry, and no more than necessary; reports of runs are no entries."""
    with machine("a", team) as workspace:
        old = fill(workspace, "prepared/old", 300)
        data = fill(workspace, "sources/objects/s3/bucket", 200)
        new = fill(workspace, "features/new", 100)
        run = fill(workspace, "runs/x/report", 900)
        tar = workspace / f"sources/archive/{'0' * 32}.tar"
        downloaded = tar.with_name("downloaded.tar")  # by a data source itself, so it is no copy
        for file in (tar, downloaded):
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(os.urandom(_BYTES))
            os.utime(file, (1e9, 1e9))
        cache.mark_used(tar)  # which leaves the time of the file as it was
        assert tar.stat().st_mtime == 1e9
        monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", f"{3.5 * _BYTES / 1000:.0f}kB")
        state = cache.shrink()
        assert [each.path for each in state.removed] == [old]
        assert state.bytes <= state.limit
        monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", "0")
        assert {each.path for each in cache.shrink().removed} == {data, new, tar}
        assert run.exists()
        assert downloaded.exists()
        assert not list(workspace.rglob("*.part"))


def test_what_an_active_run_uses_stays(
    team: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the cache is larger than its limit, and says so.

    A local workspace keeps all but downloaded data, for nothing else has a copy.
    """
    kept, data = (fill(tmp_path / ".patchline", f"{name}/s3/b", 9) for name in ("prepared", _DATA))
    monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", "1 kB")
    assert [each.path for each in cache.shrink().removed] == [data]
    assert kept.exists()
    with machine("a", team) as workspace:
        fill(workspace, "prepared/old", 300)
        used = fill(workspace, "prepared/used", 10)
        state = cache.shrink(in_use_since=time.time() - 60)
        assert used.exists()
        assert len(state.removed) == 1
        assert state.bytes > state.limit


def test_what_another_process_uses_stays(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a prediction, which is no run; once it has ended, the entry may go."""
    with machine("a", team) as workspace:
        used = fill(workspace, "sources/objects/s3/bucket", 300)
        monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", "1kb")
        with monkeypatch.context() as other:
            other.setattr(cache, "_held", {})
            cache.mark_used(used)
            held = dict(cache._held)
        state = cache.shrink()
        assert (state.removed, used.exists()) == ((), True)
        assert state.bytes > state.limit
        for lock in held.values():
            assert lock is not None
            lock.release()
        assert [each.path for each in cache.shrink().removed] == [used]
        assert [each.name for each in (workspace / "locks/cache").iterdir()] == ["gate.lock"]


@pytest.mark.parametrize("text", ["much", "-1GB", "20 GiB"])
def test_a_limit_is_a_size(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is refused with an example."""
    monkeypatch.setenv("PATCHLINE_CACHE_LIMIT", text)
    with pytest.raises(ConfigError, match=r"which is not a size\. Give .* such as 20GB\."):
        cache.shrink()


def test_kept_files_are_fetched_and_sent(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array with what lies beside it, and a folder; a lock is of one machine alone.

    A later file replaces an earlier one, and without the store, the work is done again.
    """
    for name, content in (("a", "first"), ("b", "second")):
        with machine(name, team) as workspace:
            array, file = workspace / "features/model/x.npy", workspace / "scans/x.parquet"
            kept = workspace_of(array)
            kept.fetch_array(array)
            kept.fetch_folder(workspace / "initial_weights/0f")
            kept.fetch_file(file)
            assert file.exists() is array.exists() is (name == "b")
            for each in ("x.npy", "x.pieces.jsonl", "x.lock", "y.npy"):
                write_text(array.with_name(each), each)
            write_text(file, content)
            write_text(workspace / "initial_weights/0f/weights.json", "{}")
            kept.send_array(array)
            kept.send_folder(workspace / "initial_weights/0f")
            kept.send_file(file)
    with machine("c", team) as workspace:
        array, file = workspace / "features/model/x.npy", workspace / "scans/x.parquet"
        kept = workspace_of(array)
        kept.fetch_array(array)
        kept.fetch_array(array.with_name("y.npy"))
        assert {each.name for each in array.parent.iterdir()} == {"x.npy", "x.pieces.jsonl"}
        for digits in ("0f", "1f"):
            kept.fetch_folder(workspace / "initial_weights" / digits)
        assert (workspace / "initial_weights/0f/weights.json").read_text() == "{}"
        assert not (workspace / "initial_weights/1f").exists()
        kept.fetch_file(file)
        assert file.read_text() == "second"

        def away(*_: object) -> None:
            raise StorageError("The store is away.")

        monkeypatch.setattr(FolderStore, "read", away)
        monkeypatch.setattr(FolderStore, "write", away)
        kept.fetch_file(workspace / "scans/y.parquet")
        kept.send_file(file)
        assert not (workspace / "scans/y.parquet").exists()
