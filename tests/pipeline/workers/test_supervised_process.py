"""The heartbeat of a process without a port."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.workers import supervised_process


def test_only_a_new_beat_counts(tmp_path: Path) -> None:
    """A process is well if it has beaten since the last check, and only under its own name."""
    (tmp_path / ".patchline").mkdir()
    supervised_process.beat(tmp_path, "runner")
    has_beaten = supervised_process.is_beating(tmp_path, "runner")
    assert not has_beaten()
    supervised_process.beat(tmp_path, "keeper")
    assert not has_beaten()
    supervised_process.beat(tmp_path, "runner")
    assert has_beaten()
    assert not has_beaten()


def test_a_folder_that_was_moved_is_not_made_again(tmp_path: Path) -> None:
    """Nothing is written in the old place, nor into another workspace there, until it is back."""
    first, second = tmp_path / "first", tmp_path / "second"
    (first / ".patchline").mkdir(parents=True)
    supervised_process.beat(first, "keeper")
    has_beaten = supervised_process.is_beating(first, "keeper")
    first.rename(second)
    supervised_process.beat(first, "keeper")
    assert not first.exists()
    (first / ".patchline").mkdir(parents=True)
    supervised_process.beat(first, "keeper")
    assert not list((first / ".patchline").iterdir())
    (first / ".patchline").rmdir()
    first.rmdir()
    second.rename(first)
    supervised_process.beat(first, "keeper")
    assert has_beaten()
