"""What `clean` may delete from a store: what no name needs, and nothing of an active run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from patchline.pipeline.workspace import chosen, lease
from patchline.pipeline.workspace.run_memory.cleaning import find_unneeded_objects
from patchline.pipeline.workspace.shared_files import SharedFiles, content_key
from tests.pipeline.workspace.machines import machine


def publish(shared: SharedFiles, name: str, text: str) -> str:
    """Publish a file under a name, and return the key of its content."""
    folder = Path("content")
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text(text)
    return content_key(shared.publish(name, folder, ["file"]).files["file"].sha256)


def test_only_what_nothing_needs_goes(team: str, tmp_path: Path) -> None:
    """Replaced contents and checkpoints of finished runs go; a day is left to name a content."""
    with machine("a", team):
        shared = chosen.find_shared_files()
        assert shared is not None
        replaced = publish(shared, "splits/s", "old")
        kept = publish(shared, "splits/s", "new")
        checkpoint = publish(shared, "runs/done/training/checkpoint", "of a finished run")
        needed = publish(shared, "runs/killed/training/checkpoint", "of an interrupted run")
        young = publish(shared, "splits/t", "replaced just now")
        publish(shared, "splits/t", "new")
        left, job = publish(shared, "jobs/old/task", "of a killed run"), "names/jobs/old/task.json"
        publish(shared, "jobs/young/task", "of a job that may be active")
        long_ago = time.time() - 2 * 86400
        for key in (replaced, kept, checkpoint, needed, left, job):
            os.utime(tmp_path / "team" / key, (long_ago, long_ago))
        objects, _ = find_unneeded_objects(shared, {"done"})
        assert {each.key for each in objects} == {
            *(replaced, checkpoint, "names/runs/done/training/checkpoint.json", left, job),
        }
        assert young not in {each.key for each in objects}
        with lease.hold_lease("killed"):
            objects, leases = find_unneeded_objects(shared, {"done"})
            assert [each.key for each in objects] == ["names/runs/done/training/checkpoint.json"]
            assert leases == ["killed"]


def test_a_damaged_name_stays_with_all_contents(team: str, tmp_path: Path) -> None:
    """Listing deletes nothing: a damaged name may be that of splits, and need any content."""
    with machine("a", team):
        shared = chosen.find_shared_files()
        assert shared is not None
        keys = publish(shared, "splits/s", "replaced"), publish(shared, "splits/s", "of the splits")
        name = tmp_path / "team/names/splits/s.json"
        name.write_text(name.read_text()[:-9])
        long_ago = time.time() - 2 * 86400
        for key in keys:
            os.utime(tmp_path / "team" / key, (long_ago, long_ago))
        notes = list[str]()
        shared.on_note = notes.append
        assert find_unneeded_objects(shared, set()) == ([], [])
        assert name.exists()
        assert "1 name in" in notes[0]
        assert "names/splits/s.json" in notes[0]
