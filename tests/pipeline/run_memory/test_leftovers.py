"""What killed processes leave unfinished is removed when it is old, and nothing else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

from patchline.pipeline.run_memory import leftovers, live_runs

_TWO_DAYS = 2 * 24 * 3600


def _old(path: Path) -> None:
    then = time.time() - _TWO_DAYS
    os.utime(path, (then, then))


def _left_by_a_kill(workspace: Path) -> list[Path]:
    """Write what a SIGKILL leaves in the middle of a write, two days old."""
    building = workspace / "stores" / ".building-abc"
    building.mkdir(parents=True)
    (building / "images.bin").write_bytes(b"half")
    part = workspace / "runs" / ".report.html.1234abcd.part"
    part.parent.mkdir()
    part.write_text("half", encoding="utf-8")
    lock = workspace / "live" / "gone.lock"
    lock.parent.mkdir()
    lock.touch()
    for path in (building / "images.bin", building, part, lock):
        _old(path)
    return [building, part, lock]


def test_old_unfinished_files_go(tmp_path: Path) -> None:
    """Folders that were being built, parts of files and stray locks are removed."""
    left = _left_by_a_kill(tmp_path)
    whole = tmp_path / "runs" / "report.html"
    whole.write_text("whole", encoding="utf-8")
    _old(whole)
    assert set(leftovers.remove(tmp_path)) == set(left)
    assert not any(path.exists() for path in left)
    assert whole.exists()
    assert leftovers.remove(tmp_path) == []


def test_what_was_written_to_lately_stays(tmp_path: Path) -> None:
    """One new file in a folder that is being built keeps the folder."""
    building, _, _ = _left_by_a_kill(tmp_path)
    (building / "labels.bin").write_bytes(b"new")
    _old(building)
    assert building not in leftovers.remove(tmp_path)
    assert building.exists()


def test_nothing_goes_while_a_run_is_alive(tmp_path: Path) -> None:
    """It may be the one that builds; a machine that slept makes everything look old."""
    left = _left_by_a_kill(tmp_path)
    with live_runs.alive(tmp_path, "run-1", "training"):
        assert leftovers.remove(tmp_path) == []
    assert all(path.exists() for path in left)
