"""A lease says who works on a run; its age is that of the store's clock alone."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pytest

from patchline.pipeline.workspace import chosen, lease
from patchline.pipeline.workspace.folder_store import FolderStore
from tests.pipeline.workspace.machines import machine


def test_a_lease_is_renewed_while_it_is_held(team: str) -> None:
    """Another machine sees a young lease, with its holder's name, and none afterwards."""
    with machine("a", team):
        with lease.held("run", beat_seconds=0.05):
            time.sleep(0.5)
            with machine("../b", team):
                age = lease.age_of("run")
            assert age is not None
            assert age.seconds < 0.4
            assert age.host
            assert not age.has_expired
            assert lease.names() == ["run"]
        assert lease.age_of("run") is None
        assert lease.names() == []


def test_a_lease_that_nobody_renews_expires(team: str, tmp_path: Path) -> None:
    """What a killed machine leaves grows older."""
    with machine("a", team):
        shared = chosen.shared()
        assert shared is not None
        shared.store.write("leases/run.json", b'{"host": "gone"}')
        before = time.time() - lease.EXPIRED_SECONDS - 5
        os.utime(tmp_path / "team/leases/run.json", (before, before))
        age = lease.age_of("run")
        assert age is not None
        assert age.has_expired
        assert age.host == "gone"


def test_the_clock_of_a_machine_does_not_matter(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose clock is days ahead dates the lease and the question alike."""
    ahead, now = dt.timedelta(days=3), FolderStore.now
    with machine("a", team), lease.held("run"):
        shared = chosen.shared()
        assert shared is not None
        content = shared.store.read("leases/run.json")
        assert content is not None
        later = content._replace(info=content.info._replace(modified=content.info.modified + ahead))
        monkeypatch.setattr(FolderStore, "read", lambda _self, _key: later)
        monkeypatch.setattr(FolderStore, "now", lambda self: now(self) + ahead)
        age = lease.age_of("run")
        assert age is not None
        assert age.seconds < 10


def test_a_local_workspace_has_no_leases() -> None:
    """Locks on files say there who is alive."""
    with lease.held("run"):
        assert lease.age_of("run") is None
    assert not Path(".patchline").exists()
