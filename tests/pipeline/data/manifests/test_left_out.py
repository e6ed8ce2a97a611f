"""Why files are left out: every cause has its own sentence and its own remedy."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.left_out import cause_of, list_left_out, note
from patchline.pipeline.data.pixel_values.pixel_mapping import UndecodableImageError
from patchline.pipeline.data.reading.image_file import open_regular, too_large
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, why_not_read
from patchline.pipeline.errors import DataError


@pytest.mark.parametrize(
    ("reason", "kind", "sentence"),
    [
        ("has two labels in the table, a and b", "contradictory_rows", "has two labels"),
        ("has two splits in the table, train and none", "contradictory_rows", "is in two splits"),
        ("the row names no image", "missing_file", "1 row names no image"),
        ("is a link; links in archives are not followed", "refused_member", "is a link"),
        ("its path leads outside the archive", "refused_member", "has a path outside the archive"),
        (
            "is compressed with lzma; only deflate is read from a zip",
            "refused_member",
            "by a method",
        ),
        ("cannot be read: Permission denied", "unreadable", "1 file may not be read"),
        (why_not_read(b"%PDF-1.4"), "unreadable", "has a format that is not supported"),
        (why_not_read(b"hello"), "unreadable", "is named like an image but is none"),
        (too_large(1 << 40), "unreadable", "is too large"),
        ("the image has 9x9 pixels, but at most 4 in all are allowed", "unreadable", "too large"),
        ("the file ends too early", "truncated", "is incomplete"),
        ("its json is not valid (line 1)", "unreadable", "has a label that cannot be read"),
        ("its name is not UTF-8; rename it", "unreadable", "has a name that is not UTF-8"),
        ("broken data stream", "unreadable", "1 image cannot be decoded"),
    ],
)
def test_each_cause_has_its_sentence(reason: str, kind: str, sentence: str) -> None:
    """Only what a decoder itself has refused is said not to be decodable."""
    [part] = list_left_out(pd.DataFrame({"path": ["x"], "status": ["damaged"], "reason": [reason]}))
    assert part.cause.kind == kind
    assert sentence in part.sentence
    assert note(part, 3).endswith(f"was left out: x ({reason}). {part.cause.remedy}")


@pytest.mark.parametrize(
    ("start", "name", "library"),
    [
        (bytes(128) + b"DICM", "DICOM", "pydicom"),
        (bytes(344) + b"n+1\0", "NIfTI", "nibabel"),
        (gzip.compress(bytes(344) + b"n+1\0", mtime=0), "NIfTI", "nibabel"),
        (b"v/1\x01", "OpenEXR", "OpenEXR"),
        (b"FUJIFILMCCD-RAW", "Camera raw", "rawpy"),
        (b"\0\0\0\x18ftypcrx ", "Camera raw", "rawpy"),
        (b"<svg xmlns='x'>", "SVG", "CairoSVG"),
        (b"\x93NUMPY", "NumPy", "TIFF"),
        (b"8BPS", "Photoshop", "psd-tools"),
    ],
)
def test_a_format_with_a_library_of_its_own_names_it(start: bytes, name: str, library: str) -> None:
    """DICOM and its like are left out with one sentence that says what reads or converts them."""
    reason = why_not_read((start + bytes(400))[:HEAD_BYTES])
    cause = cause_of("damaged", reason)
    assert reason.startswith(f"{name} files")
    assert library in reason
    assert cause.many == f"are {name} files"
    assert library in cause.remedy


@pytest.mark.parametrize("target", ["gone.png", "link.png"])
def test_a_link_without_a_target_is_no_fault_of_the_disk(target: str) -> None:
    """It is said to lead nowhere, whether its target is missing or the link itself."""
    Path("link.png").symlink_to(target)
    with pytest.raises(UndecodableImageError, match=r"^the link leads to no file$"):
        open_regular(Path("link.png")).__enter__()


def ingested(folder: Path, table: Path) -> IngestedData:
    """Return what is read of a folder without the images that a table excludes."""
    data = {"source": "image_folder", "path": str(folder), "exclude": str(table)}
    return ingest(validate_config({"data": data}), folder.parent / "work")


def written(folder: Path, *lines: str) -> Path:
    """Write a table with a line end after each line."""
    file = folder / "findings.csv"
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
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
        validate_config({"data": {"path": str(photos), "exclude": str(table)}, "preset": None}),
        data,
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
