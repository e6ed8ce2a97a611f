"""Locks on files."""

from __future__ import annotations

import threading
from pathlib import Path

from patchline.pipeline.files.file_locks import acquire, is_held, locked, try_lock


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """A second holder is refused and the lock is seen held, until the first releases it."""
    file = tmp_path / "new folder" / "a.lock"
    with try_lock(file) as first:
        with try_lock(file) as second:
            assert (first, second) == (True, False)
        assert is_held(file)
        assert acquire(file, 0.1) is None
    assert not is_held(file)
    with locked(file):
        assert is_held(file)


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    """A holder that releases the lock within the wait is no obstacle."""
    file = tmp_path / "a.lock"
    holder = acquire(file)
    assert holder is not None
    release = threading.Timer(0.2, holder.release)
    release.start()
    with try_lock(file, wait_seconds=30.0) as is_mine:
        assert is_mine
    release.join()


def test_checking_a_lock_does_not_create_its_file(tmp_path: Path) -> None:
    """A file that does not exist has no holder."""
    assert not is_held(tmp_path / "a.lock")
    assert not list(tmp_path.iterdir())
