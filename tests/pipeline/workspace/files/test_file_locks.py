"""Locks on files."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.file_locks import (
    Liveness,
    acquire,
    hold_lock,
    holder_of,
    is_held,
    try_lock,
)


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """A second holder is refused and the lock is seen held, until the first releases it.

    A file that does not exist has no holder, and checking does not create it.
    """
    file = tmp_path / "new folder" / "a.lock"
    assert not is_held(file)
    assert not list(tmp_path.iterdir())
    with try_lock(file) as first:
        with try_lock(file) as second:
            assert (first, second) == (True, False)
        assert is_held(file)
        assert acquire(file, 0.1) is None
    assert not is_held(file)
    with hold_lock(file):
        assert is_held(file)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no shared locks")
def test_those_who_check_a_lock_do_not_see_each_other(tmp_path: Path) -> None:
    """Many checks at the same moment, without any wait, find a lock free that nobody holds."""
    file = tmp_path / "a.lock"
    file.touch()
    with ThreadPoolExecutor(8) as pool:
        states = set(pool.map(lambda _: holder_of(file), range(100)))
        assert states == {Liveness.DEAD}
        with hold_lock(file):
            assert set(pool.map(lambda _: holder_of(file), range(100))) == {Liveness.ALIVE}


def test_a_lock_is_checked_where_there_are_no_shared_locks(tmp_path: Path) -> None:
    """The check of such a system tells the same by holding the lock for a moment."""
    file = tmp_path / "a.lock"
    assert file_locks._by_holding(file, 0.0) is Liveness.UNKNOWN
    with hold_lock(file):
        assert file_locks._by_holding(file, 0.0) is Liveness.ALIVE
    assert file_locks._by_holding(file, 0.0) is Liveness.DEAD
