"""`patchline data diff`: what changed between two data sets, in words and as JSON."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import write_photos
from tests.made.servers import Command


def test_it_names_what_changed(run_here: Command, tmp_path: Path) -> None:
    """A moved class label and a deleted file are in the JSON object and in the words."""
    before = write_photos(tmp_path / "before", classes=2, images=4)
    after = Path(shutil.copytree(before, tmp_path / "after"))
    (after / "across/000.png").rename(after / "down/odd.png")
    (after / "across/001.png").unlink()
    answer = run_here.json("data", "diff", before, after)
    assert not answer["same"]
    assert answer["removed"] == ["across/001.png"]
    assert [each["path"] for each in answer["relabelled"]] == ["down/odd.png"]
    out = run_here.out("data", "diff", before, after)
    assert "down/odd.png (across -> down)" in out
    assert "no-such-run" in run_here.refusal("data", "diff", before, "no-such-run")
    flag = ("--data.label-column", "b")
    assert "--data.label-column has no effect" in run_here.refusal(
        "data", "diff", before, after, *flag
    )
