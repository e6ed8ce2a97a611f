"""Why files are left out: each cause with its own sentence and its own remedy.

The manifest keeps the reason of each file as text; the causes here are told from these texts, in
one place, for the notes of a run and for the findings of an inspection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import pandas as pd

from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.data.reading.image_formats import REMEDIES
from patchline.pipeline.terminal_words import counted

LeftOutKind = Literal[
    "foreign", "unreadable", "truncated", "contradictory_rows", "missing_file", "refused_member"
]


class Cause(NamedTuple):
    """A reason that files have in common."""

    kind: LeftOutKind
    reasons: re.Pattern[str]
    """Matches the beginning of the manifest's column `reason`."""
    noun: str
    one: str
    """What is true of one file: `is empty`."""
    many: str
    remedy: str


class LeftOut(NamedTuple):
    """The files of one cause."""

    cause: Cause
    rows: pd.DataFrame
    """Of the manifest, in its order."""

    @property
    def sentence(self) -> str:
        """What is true of them, without a full stop: `2 files are empty`."""
        one = len(self.rows) == 1
        count = counted(len(self.rows), self.cause.noun)
        return f"{count} {self.cause.one if one else self.cause.many}"


def _cause(kind: LeftOutKind, reasons: str, noun: str, one: str, many: str, remedy: str) -> Cause:
    return Cause(kind, re.compile(reasons), noun, one, many, remedy)


_AN = {"HDF5", "NRRD", "OpenEXR", "SVG"}
"""Formats whose names begin with the sound of a vowel."""
_NOTHING = "Nothing needs to be done."
_DAMAGED = (
    _cause("contradictory_rows", "has two labels in the (table|export)", "image",
           "has two labels", "have two labels",
           "Keep one entry for each image, or those with the right label."),
    _cause("contradictory_rows", "has several labels", "image",
           "has several labels, while nearly all others have one",
           "have several labels, while nearly all others have one",
           "Keep the right one, or set --data.task multi_label to learn several."),
    _cause("contradictory_rows", "has two (splits|groups) in the (table|export)", "image",
           "is in two splits or groups", "are in two splits or groups",
           "Keep one entry for each image."),
    _cause("missing_file", "(the row names no image|the sample has no image|the table holds no im)",
           "row", "names no image", "name no image", "Fill in the image, or delete the row."),
    _cause("missing_file", "(there is no such file|is not in the archive|is in no shard"
           "|cannot be read: No such file)", "file", "does not exist", "do not exist",
           "Copy the files there, or correct their paths."),
    _cause("missing_file", "the link leads to no file", "file", "is a link that leads to no file",
           "are links that lead to no file", "Copy the files there, or delete the links."),
    _cause("refused_member", "is a link", "member of the archive", "is a link",
           "are links", "Pack the files that the links lead to."),
    _cause("refused_member", "its path (leads outside|is absolute)", "member of the archive",
           "has a path outside the archive", "have paths outside the archive",
           "Pack the files with paths relative to the folder of the images."),
    _cause("refused_member", "is encrypted", "member of the archive", "is encrypted",
           "are encrypted", "Pack the files without a password."),
    _cause("refused_member", "is compressed with", "member of the archive",
           "is compressed by a method that is not read",
           "are compressed by methods that are not read",
           "Pack the files with deflate, the usual method of a zip."),
    _cause("refused_member", "(is a sparse file|its path has more than)", "member of the archive",
           "is of a form that is not read", "are of a form that is not read",
           "Pack the files again, with shorter paths and without sparse files."),
    _cause("unreadable", "not a regular file", "file", "is a pipe, a device or a socket",
           "are pipes, devices or sockets", "Remove them, or put images in their places."),
    _cause("unreadable", "its name is not UTF-8", "file", "has a name that is not UTF-8",
           "have names that are not UTF-8",
           "Rename the files; for an archive, set --data.name-encoding."),
    _cause("unreadable", "its (cls|json|index|id|txt) ", "sample",
           "has a label that cannot be read", "have labels that cannot be read",
           "Write the shards again, with labels in UTF-8 and valid JSON."),
    _cause("unreadable", "cannot be read: Permission denied", "file", "may not be read",
           "may not be read", "Give yourself the permission to read them, as with chmod u+r."),
    _cause("unreadable", "cannot be read", "file", "cannot be read from the disk",
           "cannot be read from the disk",
           "Check the disk or the connection to the server, then copy the files again."),
    _cause("unreadable", "the file is empty", "file", "is empty", "are empty",
           "Copy or download the files again."),
    _cause("unreadable", "is damaged in the archive", "member of the archive",
           "is damaged", "are damaged", "Download or pack the archive again."),
    _cause("unreadable", "(HEIF|the package pillow-heif)", "HEIF file (.heic)",
           "needs another package", "need another package",
           "Install it with pip install 'patchline[heic]'."),
    *(
        _cause("unreadable", f"{name} files {re.escape(need)}", "file",
               f"is {'an' if name in _AN else 'a'} {name} file",
               f"are {name} files", f"{name} files {need}: {remedy}.")
        for name, (need, remedy) in REMEDIES.items()
        if name != "HEIF"  # which is told above
    ),
    _cause("unreadable", "(it is a camera's|it is a scan of|JPEG(-LS| with)|its samples|its bands"
           "|nothing says|its values have|it has samples)", "image",
           "holds values that are not read", "hold values that are not read",
           "Save them as 16-bit PNG, or as TIFF with integers or floating-point numbers; the "
           "reason of each names a program."),
    _cause("unreadable", r"([\w ]+ files are not supported|the installed Pillow cannot read)",
           "image", "has a format that is not supported", "have formats that are not supported",
           "Convert the images to PNG or JPEG."),
    _cause("unreadable", "not an image that can be read", "file",
           "is named like an image but is none", "are named like images but are none",
           "Download the files again, or delete them."),
    _cause("unreadable", r"(the file has \d+ bytes|the image has \d+x\d+ pixels)", "image",
           "is too large to be read safely", "are too large to be read safely",
           "Make the images smaller."),
    _cause("unreadable", "there is not enough memory", "image", "needs more memory than is free",
           "need more memory than is free", "Free memory, or make the images smaller."),
    _cause("truncated", "the file ends too early", "image",
           "is incomplete: its file ends too early", "are incomplete: their files end too early",
           "Copy or download the files again."),
    _cause("unreadable", "", "image", "cannot be decoded", "cannot be decoded",
           "Repair or delete the files."),
)  # fmt: skip
_FOREIGN = (
    _cause("foreign", "has no label", "image", "has no label", "have no label",
           "Label them, or leave them as they are."),
    _cause("foreign", "is not in a class folder", "file", "is not in a class folder",
           "are not in class folders", "Move the images among them into class folders."),
    _cause("foreign", "its path does not have the form", "file",
           "has a path of another form than data.label", "have paths of another form than "
           "data.label", "Change data.label, or move the files, if they belong to the data."),
    _cause("foreign", "", "file", "is not an image of a class", "are not images of a class",
           _NOTHING),
)  # fmt: skip
CAUSES = (*_DAMAGED, *_FOREIGN)
"""The first one that matches counts; the last of each status matches everything."""


def cause_of(status: str, reason: str) -> Cause:
    """Return the cause for which a file is left out."""
    causes = _FOREIGN if status == "foreign" else _DAMAGED
    return next(cause for cause in causes if cause.reasons.match(reason))


def left_out(manifest: pd.DataFrame) -> Iterator[LeftOut]:
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
    was = "was" if len(rows) == 1 else "were"
    remedy = "" if part.cause.kind == "foreign" else f". {part.cause.remedy}"
    return f"{part.sentence} and {was} left out: {examples(named, most)}{remedy}"
