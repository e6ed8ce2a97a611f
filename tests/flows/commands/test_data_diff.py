"""`patchline data diff`: what changed between two data sets, in words and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.conftest import write_photos

RunHere = Callable[..., tuple[int, str, str]]


def test_it_names_what_changed(run_here: RunHere, tmp_path: Path) -> None:
    """A moved class label and a deleted file are in the JSON object and in the words."""
    before = write_photos(tmp_path / "before", classes=2, images=4)
    after = Path(shutil.copytree(before, tmp_path / "after"))
    (after / "across/000.png").rename(after / "down/odd.png")
    (after / "across/001.png").unlink()
    code, out, err = run_here("data", "diff", str(before), str(after), "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert not answer["same"]
    assert answer["removed"] == ["across/001.png"]
    assert [each["path"] for each in answer["relabelled"]] == ["down/odd.png"]
    code, out, err = run_here("data", "diff", str(before), str(after))
    assert code == 0, err
    assert "down/odd.png (across -> down)" in out


def test_unknown_name_is_a_sentence(run_here: RunHere, tmp_path: Path) -> None:
    """What is neither data nor a run exits with code 2."""
    photos = write_photos(tmp_path / "photos", images=1)
    code, _, err = run_here("data", "diff", str(photos), "no-such-run")
    assert code == 2
    assert "no-such-run" in err
