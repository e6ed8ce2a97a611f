"""Names in an archive whose encoding is not declared.

A zip declares only UTF-8, by a flag; without it, the standard says cp437, but the Finder of macOS
writes UTF-8, and Windows the code page of its language. A tar declares nothing but is nearly always
UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import DataError

_UTF_8, _STANDARD = "UTF-8", "cp437"
_USUAL = ("cp1252", "cp932", "gbk", "euc_kr", "cp1251")
"""Code pages of Windows in Western Europe, Japan, China, Korea and Eastern Europe."""


class ReadNames(NamedTuple):
    """The names of an archive's members."""

    names: Mapping[bytes, str]
    note: str
    """How they were read; empty without names that need an encoding."""


def read_names(file: Path, raw: Sequence[bytes], encoding: str | None) -> ReadNames:
    """Return names that do not declare their encoding.

    Args:
        file: the archive, for messages.
        raw: the names that are not ASCII.
        encoding: of all of them; None means UTF-8, or cp437 if one of them is not.

    Raises:
        DataError: if a name is not in the given encoding.
    """
    if not raw:
        return ReadNames({}, "")
    chosen = encoding or (_UTF_8 if _are(raw, _UTF_8) else _STANDARD)
    if not _are(raw, chosen):
        odd = next(name for name in raw if not _are([name], chosen))
        raise DataError(
            f"data.name_encoding is {encoding}, but the name {odd!r} in {file} is not in this "
            "encoding. Try another, or unpack the archive and pass the folder."
        )
    names = {name: name.decode(chosen) for name in raw}
    one = len(raw) == 1
    count = f"{len(raw):,} name{' does' if one else 's do'} not declare an encoding"
    was = f"{'was' if one else 'were'} read as {chosen}: '{names[raw[0]]}'"
    rest = "" if encoding or chosen == _UTF_8 else _others(raw)
    return ReadNames(names, f"{file.name}: {count} and {was}{rest}")


def _others(raw: Sequence[bytes]) -> str:
    """Return what the first name would be in other encodings in which all names can be read."""
    possible = {each: raw[0].decode(each) for each in _USUAL if _are(raw, each)}
    shown = ", ".join(f"'{name}' in {each}" for each, name in possible.items())
    return f" ({shown}); --data.name-encoding chooses another" if shown else ""


def _are(names: Sequence[bytes], encoding: str) -> bool:
    try:
        for name in names:
            name.decode(encoding)
    except UnicodeError:
        return False
    return True
