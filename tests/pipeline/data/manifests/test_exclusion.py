"""Images excluded by a table: what is dropped, what is recorded, and which tables are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import DataError


def ingested(folder: Path, table: Path) -> IngestedData:
    """Return what is read of a folder without the images that a table excludes."""
    data = {"source": "image_folder", "path": str(folder), "exclude": str(table)}
    return ingest(validated({"data": data}), folder.parent / "work")


def written(folder: Path, *lines: str) -> Path:
    """Write a table with a line end after each line."""
    file = folder / "findings.csv"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def test_marked_images_are_excluded_with_their_reason(photos: Path, tmp_path: Path) -> None:
    """A row with yes drops its image from all splits; the manifest still has it, and why."""
    lines = ("down/003.png,dark,yes", "down/004.png,dark,", "down/005.png,blank,No")
    data = ingested(photos, written(tmp_path, "path,kind,exclude", *lines, "gone.png,dark,x"))
    assert data.class_counts["down"] == 19
    rows = manifests.load(data.manifest_file).set_index("path")
    found = tuple(rows.loc["down/003.png", ["status", "reason", "split"]])
    assert (found, (rows["status"] == "excluded").sum()) == (("excluded", "dark", ""), 1)
    assert "1 image was excluded by findings.csv" in data.notes
    assert "1 file of findings.csv is not in the data: gone.png" in data.notes


def test_resolved_config_names_a_copy_of_the_table(photos: Path, tmp_path: Path) -> None:
    """Editing or deleting the table later does not change what the run's config excludes."""
    table = written(tmp_path, "path;exclude", "down/003.png;yes")
    data = ingested(photos, table)
    config = resolve(
        validated({"data": {"path": str(photos), "exclude": str(table)}, "preset": None}), data
    )
    table.unlink()
    assert config.data.exclude is not None
    again = ingest(config, tmp_path / "work")
    assert (again.fingerprint, str(again.exclude)) == (data.fingerprint, config.data.exclude)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (None, "there is no such file. Check the path"),
        (["path,kind", "a.png,dark"], "no column 'exclude' (its columns: path, kind)"),
        ([], "(it is empty)"),
        (["path,exclude", "a.png,maybe"], "says 'maybe' in the column 'exclude' near line 2"),
        (["exclude,path", "yes"], "has no path near line 2"),
    ],
)
def test_wrong_table_is_refused_in_a_sentence(
    photos: Path, tmp_path: Path, lines: list[str] | None, words: str
) -> None:
    """A missing file or column, or an unknown answer, is named with the remedy."""
    table = tmp_path / "none" if lines is None else written(tmp_path, *lines)
    with pytest.raises(DataError, match=re.escape(words)):
        ingested(photos, table)
