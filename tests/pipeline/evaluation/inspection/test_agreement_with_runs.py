"""The inspection says what a run would do, and its table is read as a run reads it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests.left_out import read_exclusion
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.inspection.findings import write_table
from tests.conftest import write_photos
from tests.pipeline.evaluation.inspection.test_inspecting import garden, inspected, scene


def test_single_class_is_said_to_stop_a_run(tmp_path: Path) -> None:
    """It can be inspected all the same."""
    result = inspected(write_photos(tmp_path / "photos", classes=1, images=12)).result
    assert result.images == 12
    assert re.match(r"a run would stop: .* has only one class, 'across'", result.notes[0])


def test_splits_are_those_of_a_run_that_groups_near_duplicates(tmp_path: Path) -> None:
    """With the setting the version of the data is the run's; without it, the setting is advised."""
    folder = tmp_path / "garden"
    for number in range(24):
        file = folder / ("day", "night")[number % 2] / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        scene(number).save(file)
        if number < 8:
            scene(number).save(file.with_suffix(".jpg"), quality=30)
    settings = {"source": "image_folder", "path": str(folder), "group_near_duplicates": True}
    run = ingestion.ingest(validate_config({"data": settings}), tmp_path / "other")
    for grouped, advice in (
        (True, "as data.group_near_duplicates says"),
        (False, "--data.group-near-duplicates"),
    ):
        found = inspected(folder, group_near_duplicates=grouped)
        [near] = [each for each in found.result.findings if each.kind == "near_duplicate"]
        assert near.count == 16
        assert advice in near.action
        assert (found.result.fingerprint == run.fingerprint) is grouped


def test_table_of_a_leak_by_groups_unblocks_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a group outside the most important of its splits are marked, as copies are."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = garden(tmp_path / "garden", images=12)
    group = {"group_pattern": r"(0[01])\.png"}
    found = inspected(folder, **group)
    [leak] = [each for each in found.result.findings if each.kind == "leakage"]
    assert leak.severity == "error"
    kept = {f"test/{label}/0{number}.png" for label in ("day", "night") for number in (0, 1)}
    assert set(leak.files) - set(leak.exclude) == kept
    write_table(found.result, found.manifest, tmp_path / "findings.csv")
    settings = {"source": "image_folder", "path": str(folder), **group}
    with pytest.raises(DataError, match="more than one split"):
        ingestion.ingest(validate_config({"data": settings}), tmp_path / "other")
    settings["exclude"] = "~/findings.csv"
    run = ingestion.ingest(validate_config({"data": settings}), tmp_path / "other")
    rest = inspected(folder, **group, exclude="~/findings.csv").result
    assert rest.findings == ()
    assert rest.fingerprint == run.fingerprint


def test_what_is_excluded_already_stays_in_the_table(tmp_path: Path) -> None:
    """Inspecting with the table that the findings are written to excludes the same files again."""
    folder, table = garden(tmp_path / "garden"), tmp_path / "findings.csv"
    scene(900).point(lambda value: value // 8).save(folder / "train/day/odd.png")
    found = inspected(folder)
    write_table(found.result, found.manifest, table)
    edited = table.read_text("utf-8").replace(",dark,note,,", ",dark,note,yes,")
    table.write_text(edited.replace(",", ";"), "utf-8")
    again = inspected(folder, exclude=str(table))
    assert again.result.findings == ()
    for each in (again, found):
        write_table(each.result, each.manifest, table)
        assert table.read_text("utf-8") == edited


def _inspected_again(folder: Path, exclude: str | None = None) -> tuple[list[str], list[str]]:
    """Inspect a folder and write its table; return the notes and the excluded files."""
    found, table = inspected(folder, exclude=exclude), folder.with_name("findings.csv")
    notes = write_table(found.result, found.manifest, table)
    return notes, sorted(read_exclusion(table).reasons)


def test_the_last_copy_of_an_image_is_not_excluded(tmp_path: Path) -> None:
    """A mark goes with the copy that it was made for; what a person has written stays."""
    folder, table = garden(tmp_path / "garden", images=2), tmp_path / "findings.csv"
    day = folder / "train/day"
    copies = [f"train/day/copy{number}.png" for number in (1, 2)]
    for copy in copies:
        shutil.copy(day / "00.png", folder / copy)
    for exclude in (None, str(table)):
        assert _inspected_again(folder, exclude) == ([], copies)
    (day / "00.png").unlink()
    assert _inspected_again(folder)[1] == copies[1:]
    (folder / copies[0]).unlink()
    [note], excluded = _inspected_again(folder, str(table))
    assert note.startswith("1 file is no longer excluded by findings.csv, as the reason is gone: ")
    assert excluded == []


def test_a_person_may_exclude_the_other_copy(tmp_path: Path) -> None:
    """Both answers are kept, that to exclude one copy and that to keep the other."""
    folder, table = garden(tmp_path / "garden"), tmp_path / "findings.csv"
    shutil.copy(folder / "train/day/00.png", folder / "train/day/copy.png")
    _inspected_again(folder)
    answers = pd.read_csv(table, keep_default_na=False)
    answers["exclude"] = answers["exclude"].map({"yes": "", "": "yes"})
    answers.to_csv(table, index=False)
    for exclude in (str(table), None):
        assert _inspected_again(folder, exclude)[1] == ["train/day/00.png"]


def test_a_table_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    """Its answers would be lost, so the error names it and what to do."""
    folder, table = garden(tmp_path / "garden", images=1), tmp_path / "findings.csv"
    for content in (b"path,exclude\n\xff,yes\n", b"file,exclude\na.png,yes\n"):
        table.write_bytes(content)
        with pytest.raises(DataError, match=r"replace .*findings\.csv, .* or move it away\."):
            _inspected_again(folder)
        assert table.read_bytes() == content
