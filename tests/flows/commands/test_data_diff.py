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


def test_columns_of_tables_can_be_chosen(run_here: RunHere, tmp_path: Path) -> None:
    """They count for both sides, unless one is a folder; without a table, the flag is refused."""
    photos = write_photos(tmp_path / "photos", classes=2, images=4)
    files = sorted(photos.rglob("*.png"))
    for name, wrong in (("one", ""), ("two", files[0].name)):
        rows = [
            f"{file.relative_to(photos)},x,{'down' if file.name == wrong else file.parent.name}"
            for file in files
        ]
        (photos / f"{name}.csv").write_text("\n".join(["where,a,b", *rows]), encoding="utf-8")
    one, two = (str(photos / f"{name}.csv") for name in ("one", "two"))
    code, _, err = run_here("data", "diff", one, two)
    assert code == 2
    assert "--data.label-column" in err
    chosen = ("--data.label-column", "b", "--json")
    code, out, err = run_here("data", "diff", one, two, *chosen)
    assert code == 0, err
    assert [each["path"] for each in json.loads(out)["relabelled"]] == ["across/000.png"]
    other = Path(
        shutil.copytree(photos, tmp_path / "other", ignore=lambda *_: ["one.csv", "two.csv"])
    )
    code, out, err = run_here("data", "diff", str(other), one, *chosen)
    assert code == 0, err
    assert json.loads(out)["same"]
    code, _, err = run_here("data", "diff", str(other), str(other), *chosen)
    assert code == 2
    assert "--data.label-column has no effect" in err
