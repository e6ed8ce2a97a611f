"""Which files are left out: those that cannot be used, and those that a table excludes.

The manifest keeps the reason of each file as text; the causes here are told from these texts, in
one place, for the notes of a run and for the findings of an inspection.

The table is a CSV file with the columns `path` and `exclude`; other columns are ignored. A row
excludes the file at its path if `exclude` is yes. A run works with a copy of the table that is
named by its content, so resuming and repeating it exclude the same images.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from patchline.pipeline.data.reading.image_formats import REMEDIES
from patchline.pipeline.errors import DataError
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.paths import expand_user
from patchline.pipeline.workspace.files.table_cells import table_cell

LeftOutKind = Literal[
    "foreign", "unreadable", "truncated", "contradictory_rows", "missing_file", "refused_member"
]


class Cause(NamedTuple):
    """A reason that files have in common."""

    kind: LeftOutKind
    reasons: str
    """A regular expression for the beginning of the manifest's column `reason`."""
    noun: str
    one: str
    """What is true of one file: `is empty`."""
    many: str
    remedy: str


class LeftOut(NamedTuple):
    """The files of one cause."""

    cause: Cause
    rows: pd.DataFrame
    """Rows of the manifest, in its order."""

    @property
    def sentence(self) -> str:
        """What is true of them, without a full stop: `2 files are empty`."""
        count = len(self.rows)
        words = by_number(count, self.cause.one, self.cause.many)
        return f"{counted(count, self.cause.noun)} {words}"


_AN = {"HDF5", "NRRD", "OpenEXR", "SVG"}
"""Formats whose names begin with the sound of a vowel."""
_NOTHING = "Nothing needs to be done."
_DAMAGED = (
    Cause("contradictory_rows", "has two labels in the (table|export)", "image",
           "has two labels", "have two labels",
           "Keep one entry for each image, or those with the right label."),
    Cause("contradictory_rows", "has several labels", "image",
           "has several labels, while nearly all others have one",
           "have several labels, while nearly all others have one",
           "Keep the right one, or set --data.task multi_label to learn several."),
    Cause("contradictory_rows", "has two (splits|groups) in the (table|export)", "image",
           "is in two splits or groups", "are in two splits or groups",
           "Keep one entry for each image."),
    Cause("missing_file", "(the row names no image|the sample has no image|the table holds no im)",
           "row", "names no image", "name no image", "Fill in the image, or delete the row."),
    Cause("missing_file", "(there is no such file|is not in the archive|is in no shard"
           "|cannot be read: No such file)", "file", "does not exist", "do not exist",
           "Copy the files there, or correct their paths."),
    Cause("missing_file", "the link leads to no file", "file", "is a link that leads to no file",
           "are links that lead to no file", "Copy the files there, or delete the links."),
    Cause("refused_member", "is a link", "member of the archive", "is a link",
           "are links", "Pack the files that the links lead to."),
    Cause("refused_member", "its path (leads outside|is absolute)", "member of the archive",
           "has a path outside the archive", "have paths outside the archive",
           "Pack the files with paths relative to the folder of the images."),
    Cause("refused_member", "is encrypted", "member of the archive", "is encrypted",
           "are encrypted", "Pack the files without a password."),
    Cause("refused_member", "is compressed with", "member of the archive",
           "is compressed by a method that is not read",
           "are compressed by methods that are not read",
           "Pack the files with deflate, the usual method of a zip."),
    Cause("refused_member", "(is a sparse file|its path has more than)", "member of the archive",
           "is of a form that is not read", "are of a form that is not read",
           "Pack the files again, with shorter paths and without sparse files."),
    Cause("unreadable", "not a regular file", "file", "is a pipe, a device or a socket",
           "are pipes, devices or sockets", "Remove them, or put images in their places."),
    Cause("unreadable", "its name is not UTF-8", "file", "has a name that is not UTF-8",
           "have names that are not UTF-8",
           "Rename the files; for an archive, set --data.name-encoding."),
    Cause("unreadable", "its (cls|json|index|id|txt) ", "sample",
           "has a label that cannot be read", "have labels that cannot be read",
           "Write the shards again, with labels in UTF-8 and valid JSON."),
    Cause("unreadable", "cannot be read: Permission denied", "file", "may not be read",
           "may not be read", "Give yourself the permission to read them, as with chmod u+r."),
    Cause("unreadable", "cannot be read", "file", "cannot be read from the disk",
           "cannot be read from the disk",
           "Check the disk or the connection to the server, then copy the files again."),
    Cause("unreadable", "the file is empty", "file", "is empty", "are empty",
           "Copy or download the files again."),
    Cause("unreadable", "is damaged in the archive", "member of the archive",
           "is damaged", "are damaged", "Download or pack the archive again."),
    Cause("unreadable", "(HEIF|the package pillow-heif)", "HEIF file (.heic)",
           "needs another package", "need another package",
           "Install it with pip install 'patchline[heic]'."),
    *(
        Cause("unreadable", f"{name} files {re.escape(need)}", "file",
               f"is {'an' if name in _AN else 'a'} {name} file",
               f"are {name} files", f"{name} files {need}: {remedy}.")
        for name, (need, remedy) in REMEDIES.items()
        if name != "HEIF"  # which is told above
    ),
    Cause("unreadable", "(it is a camera's|it is a scan of|JPEG(-LS| with)|its samples|its bands"
           "|nothing says|its values have|it has samples)", "image",
           "holds values that are not read", "hold values that are not read",
           "Save them as 16-bit PNG, or as TIFF with integers or floating-point numbers; the "
           "reason of each names a program."),
    Cause("unreadable", r"([\w ]+ files are not supported|the installed Pillow cannot read)",
           "image", "has a format that is not supported", "have formats that are not supported",
           "Convert the images to PNG or JPEG."),
    Cause("unreadable", "not an image that can be read", "file",
           "is named like an image but is none", "are named like images but are none",
           "Download the files again, or delete them."),
    Cause("unreadable", r"(the file has \d+ bytes|the image has \d+x\d+ pixels)", "image",
           "is too large to be read safely", "are too large to be read safely",
           "Make the images smaller."),
    Cause("unreadable", "there is not enough memory", "image", "needs more memory than is free",
           "need more memory than is free", "Free memory, or make the images smaller."),
    Cause("truncated", "the file ends too early", "image",
           "is incomplete: its file ends too early", "are incomplete: their files end too early",
           "Copy or download the files again."),
    Cause("unreadable", "", "image", "cannot be decoded", "cannot be decoded",
           "Repair or delete the files."),
)  # fmt: skip
_FOREIGN = (
    Cause("foreign", "has no label", "image", "has no label", "have no label",
           "Label them, or leave them as they are."),
    Cause("foreign", "is not in a class folder", "file", "is not in a class folder",
           "are not in class folders", "Move the images among them into class folders."),
    Cause("foreign", "its path does not have the form", "file",
           "has a path of another form than data.label", "have paths of another form than "
           "data.label", "Change data.label, or move the files, if they belong to the data."),
    Cause("foreign", "", "file", "is not an image of a class", "are not images of a class",
           _NOTHING),
)  # fmt: skip
CAUSES = (*_DAMAGED, *_FOREIGN)
"""The first one that matches counts; the last of each status matches everything."""


def cause_of(status: str, reason: str) -> Cause:
    """Return the cause for which a file is left out."""
    causes = _FOREIGN if status == "foreign" else _DAMAGED
    return next(cause for cause in causes if re.match(cause.reasons, reason))


def list_left_out(manifest: pd.DataFrame) -> Iterator[LeftOut]:
    """Yield the files of a manifest that are left out, by cause in the order of `CAUSES`."""
    rows = manifest[manifest["status"].isin(["damaged", "foreign"])]
    pairs = zip(rows["status"], rows["reason"], strict=True)
    places: dict[Cause, list[int]] = {}
    for place, (status, reason) in enumerate(pairs):
        places.setdefault(cause_of(status, reason), []).append(place)
    for cause in CAUSES:
        if cause in places:
            yield LeftOut(cause, rows.iloc[places[cause]])


def remedies(parts: Sequence[LeftOut]) -> str:
    """Return what can be done about several causes: each remedy with the files that it is for."""
    if len(parts) == 1:
        return parts[0].cause.remedy
    return " ".join(f"If one {part.cause.one}: {part.cause.remedy}" for part in parts)


def note(part: LeftOut, most: int) -> str:
    """Return a line about the files of one cause: their names and reasons, and the remedy."""
    rows, said = part.rows, {"", part.cause.remedy.rstrip(".")}
    named = [
        path if reason in said else f"{path} ({reason})"
        for path, reason in zip(rows["path"], rows["reason"], strict=True)
    ]
    was = by_number(len(rows), "was", "were")
    remedy = "" if part.cause.kind == "foreign" else f". {part.cause.remedy}"
    return f"{part.sentence} and {was} left out: {few_names(named, most)}{remedy}"


PATH, EXCLUDE = "path", "exclude"
"""Columns of the table."""
STATUS = "excluded"
_YES, _NO = {"yes", "y", "true", "1", "x"}, {"", "no", "n", "false", "0"}
_LONGEST_FIELD = 1 << 24


class Exclusion(NamedTuple):
    """The files that a table excludes."""

    name: str
    """The file name of the table."""
    reasons: dict[str, str]
    """The reason why each file is excluded, by its path."""
    text: str
    """The text of the table."""

    def kept_copy(self, workspace: Path) -> Path:
        """Write a copy of the table that is named by its content, unless it exists."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        copy = workspace / "exclusions" / digest / self.name
        if not copy.is_file() or copy.read_text("utf-8") != self.text:
            write_text(copy, self.text)
        return copy


def read_exclusion(file: Path) -> Exclusion:
    """Read a table of files to exclude.

    Raises:
        DataError: if it cannot be read, lacks a column, or has an answer that is not yes or no.
    """
    file = expand_user(file, "data.exclude")
    setting = f"data.exclude is {file}"
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{setting}, but there is no such file. Check the path.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{setting}, which cannot be read ({error}). Save it as CSV.") from error
    try:
        return Exclusion(file.name, _reasons(text, setting), text)
    except csv.Error as error:
        raise DataError(
            f"{setting}, which is not a CSV table ({error}). Save it as CSV."
        ) from error


def apply_exclusion(
    setting: str | None, manifest: pd.DataFrame, workspace: Path, *, alone: bool
) -> tuple[pd.DataFrame, list[str], Path | None]:
    """Return the manifest without the files that `data.exclude` names, notes, and a copy of it.

    Args:
        setting: the value of `data.exclude`; None excludes nothing.
        manifest: the manifest of all files.
        workspace: receives the copy of the table.
        alone: whether there are no unlabelled images, to which `exclude_unlabelled` applies the
            rest of the table.

    Raises:
        DataError: if the table cannot be used.
    """
    if setting is None:
        return manifest, [], None
    excluded = read_exclusion(Path(setting))
    manifest, notes = with_exclusion(manifest, excluded, alone=alone)
    return manifest, notes, excluded.kept_copy(workspace)


def with_exclusion(
    manifest: pd.DataFrame, exclusion: Exclusion, *, alone: bool = True
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest with the files of a table excluded, and notes; see `apply_exclusion`.

    Files that an earlier run has excluded stay so.
    """
    written = {path: _format_path(path, exclusion.reasons) for path in manifest["path"]}
    cells = manifest["path"].map(written)
    here = cells.isin(exclusion.reasons)
    usable = here & (manifest["status"] == "ok")
    manifest = manifest.copy()
    manifest.loc[usable, "reason"] = cells[usable].map(exclusion.reasons)
    manifest.loc[usable, "status"] = STATUS
    count = int((here & (manifest["status"] == STATUS)).sum())
    notes = [f"{counted(count, 'image was', 'images were')} excluded by {exclusion.name}"]
    absent = exclusion.reasons.keys() - set(written.values())
    return manifest, [*notes, *(_notes_on_absent(exclusion, absent) if alone else [])]


def exclude_unlabelled(
    unlabelled: pd.DataFrame, labelled: pd.DataFrame, setting: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest of the unlabelled images without the files of a table, and notes.

    A path that both manifests have means the labelled image.

    Args:
        unlabelled: the manifest of the unlabelled images.
        labelled: the manifest of the labelled images.
        setting: the value of `data.exclude`; None excludes nothing.
    """
    if setting is None:
        return unlabelled, []
    exclusion = read_exclusion(Path(setting))
    of_labelled = {_format_path(path, exclusion.reasons) for path in labelled["path"]}
    others = {path: why for path, why in exclusion.reasons.items() if path not in of_labelled}
    rest = exclusion._replace(reasons=others)
    result, [note] = with_exclusion(unlabelled, rest, alone=False)
    here = {_format_path(path, others) for path in unlabelled["path"]}
    notes = [f"data.unlabelled: {note}"] if others.keys() & here else []
    return result, [*notes, *_notes_on_absent(exclusion, others.keys() - here)]


def _notes_on_absent(exclusion: Exclusion, paths: Iterable[str]) -> list[str]:
    absent = sorted(paths)
    if not absent:
        return []
    files = f"{counted(len(absent), 'file')} of {exclusion.name}"
    are = by_number(len(absent), "is", "are")
    return [f"{files} {are} not in the data: {few_names(absent, 3)}"]


def _format_path(path: str, reasons: Mapping[str, str]) -> str:
    """Return a path as a table states it: as it is, or as a cell that is safe in a spreadsheet."""
    return path if path in reasons else table_cell(path)


def table_of(text: str) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Return the names of a table's columns in lower case, and its rows with their line numbers."""
    csv.field_size_limit(_LONGEST_FIELD)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)  # as spreadsheets write it
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = [name.strip().lower() for name in next(lines, [])]
    return names, ((lines.line_num, dict(zip(names, cells, strict=False))) for cells in lines)


def says_yes(answer: str) -> bool:
    """Return whether an answer in the column `exclude` excludes the file."""
    return answer.strip().lower() in _YES


def _reasons(text: str, setting: str) -> dict[str, str]:
    names, rows = table_of(text)
    for needed in (PATH, EXCLUDE):
        if needed not in names:
            columns = f"its columns: {', '.join(names)}" if names else "it is empty"
            raise DataError(
                f"{setting}, which has no column '{needed}' ({columns}). Use the findings.csv "
                "of `patchline data inspect`."
            )
    reasons: dict[str, str] = {}
    for number, row in rows:
        answer = row.get(EXCLUDE, "").strip().lower()
        if says_yes(answer) and not row.get(PATH):
            raise DataError(
                f"{setting}, which has no path near line {number}. Write the path of the file to "
                "exclude, or remove the line."
            )
        if says_yes(answer):
            reasons.setdefault(row[PATH], row.get("kind", "") or "excluded by the table")
        elif answer not in _NO:
            raise DataError(
                f"{setting}, which says '{answer}' in the column '{EXCLUDE}' near line "
                f"{number}. Write yes or no."
            )
    return reasons
