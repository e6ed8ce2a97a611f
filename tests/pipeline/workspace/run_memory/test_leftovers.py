"""What killed processes leave unfinished is removed when it is old, and nothing else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.run_memory.leftovers import remove_leftovers


def test_old_unfinished_files_go(tmp_path: Path) -> None:
    """Folders being built, parts of files and stray locks go after a day, unless a run is alive.

    One new file in a folder that is being built keeps the folder.
    """
    building, part = tmp_path / "stores/.building-abc", tmp_path / "runs/.report.html.1234abcd.part"
    whole, lock = tmp_path / "runs/report.html", tmp_path / "live/gone.lock"
    young = tmp_path / "stores/.building-def"
    inside = [building / "images.bin", young / "images.bin"]
    for file in (*inside, part, whole, lock):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half", encoding="utf-8")
    then = time.time() - 2 * 24 * 3600
    for path in (*inside, building, young, part, whole, lock):
        os.utime(path, (then, then))
    (young / "labels.bin").write_bytes(b"new")
    os.utime(young, (then, then))
    with live_runs.alive(tmp_path, "run-1", "training"):
        # a machine that slept makes everything look old
        assert remove_leftovers(tmp_path) == []
    assert set(remove_leftovers(tmp_path)) == {building, part, lock}
    assert not building.exists()
    assert whole.exists()
    assert remove_leftovers(tmp_path) == []
