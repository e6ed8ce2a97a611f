"""A command in a workspace that it may not write works on a copy, which is gone afterwards."""

from __future__ import annotations

import atexit
import shutil
import stat
from pathlib import Path

import pytest

from patchline.pipeline.files import workspace_folder
from patchline.pipeline.relocation import read_only


def test_the_copy_of_a_read_only_folder_can_be_refreshed_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modes are not copied: a folder without write permission would stay in the temporary folder.

    Root may delete it anyway, so the modes themselves are compared.
    """
    removals: list[Path] = []
    monkeypatch.setattr(atexit, "register", lambda _, folder, **__: removals.append(folder))
    monkeypatch.setattr(workspace_folder, "use_scratch", lambda _: None)
    monkeypatch.setattr(read_only, "_copies", {})
    monkeypatch.chdir(tmp_path)
    splits = tmp_path / ".patchline/splits"
    splits.mkdir(parents=True)
    table = splits / "table.parquet"
    for content in (b"one", b"two"):
        splits.chmod(0o755)
        table.unlink(missing_ok=True)
        table.write_bytes(content)
        table.chmod(0o444)
        splits.chmod(0o555)
        read_only.enter()
        [scratch] = removals
        copied = scratch / ".patchline/splits"
        assert (copied / table.name).read_bytes() == content
        assert stat.S_IMODE(copied.stat().st_mode) == 0o700
        assert (copied / table.name).stat().st_mode & stat.S_IWUSR
    shutil.rmtree(scratch)
    splits.chmod(0o755)
