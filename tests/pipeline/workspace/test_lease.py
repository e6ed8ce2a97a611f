"""A lease says who works on a run; its age is that of the store's clock alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from patchline.pipeline.workspace import lease
from tests.pipeline.workspace.machines import machine


def test_a_lease_is_renewed_while_it_is_held(team: str, tmp_path: Path) -> None:
    """Another machine sees a lease that has not expired, and none afterwards.

    What a killed machine leaves expires, by the clock of the store.
    """
    file, long_ago = tmp_path / "team/leases/run.json", time.time() - 95
    with lease.hold_lease("run"):  # in a local workspace, where locks on files say who is alive
        assert lease.find_expired() == {}
    assert not Path(".patchline").exists()
    with machine("a", team), lease.hold_lease("run", beat_seconds=0.05):
        os.utime(file, (long_ago, long_ago))
        while file.stat().st_mtime < long_ago + 1:
            time.sleep(0.01)
        with machine("../b", team):
            assert lease.find_expired() == {"run": False}
    with machine("a", team):
        assert lease.find_expired() == {}
        file.parent.mkdir(exist_ok=True)
        file.write_text('{"host": "gone"}')
        os.utime(file, (long_ago, long_ago))
        assert lease.find_expired() == {"run": True}
