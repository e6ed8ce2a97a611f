"""Which workspace a command works with: the flag, the variable, what the folder remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace import chosen


def test_without_an_address_the_workspace_is_the_folder() -> None:
    """Nothing is opened, nothing is written. Only an object store is known to be shared."""
    assert chosen.address() is None
    assert chosen.find_shared_files() is None
    assert not Path(".patchline").exists()
    for address, is_local in ((None, True), ("s3://bucket/team", False), ("file:///team", True)):
        if address:
            chosen.use(address)
        assert chosen.is_local() is is_local


def test_the_folder_remembers_its_workspace(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given once holds for later commands, and for processes that are started later."""
    chosen.use("team")  # a folder may be given as a path
    assert str(chosen.address()) == team
    assert chosen.find_shared_files() is not None
    monkeypatch.setenv(chosen.VARIABLE, "")
    assert str(chosen.address()) == team
    shared = chosen.find_shared_files()
    assert shared is not None
    assert shared.uri == team


def test_a_folder_caches_one_workspace(team: str, tmp_path: Path) -> None:
    """Another address in the same folder is refused: results would be mixed."""
    chosen.use(team)
    chosen.find_shared_files()
    (tmp_path / "other").mkdir()
    chosen.use("other")
    with pytest.raises(ConfigError, match=f"here caches the workspace {team}"):
        chosen.find_shared_files()


def test_results_of_a_local_workspace_are_not_mixed_in(team: str) -> None:
    """A folder with results of its own does not become the cache of a shared workspace."""
    Path(".patchline/splits").mkdir(parents=True)
    chosen.use(team)
    assert chosen.address() is not None  # an inspection leaves such folders
    Path(".patchline/splits/rule-1.parquet").touch()
    with pytest.raises(ConfigError, match="here holds runs of its own"):
        chosen.find_shared_files()


def test_a_folder_that_is_not_mounted_is_said(tmp_path: Path) -> None:
    """It is not created: its disk may be missing."""
    chosen.use(str(tmp_path / "mnt"))
    with pytest.raises(ConfigError, match="There is no folder"):
        chosen.find_shared_files()
    assert not (tmp_path / "mnt").exists()
