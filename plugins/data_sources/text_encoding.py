"""The encoding of a text file: as it is set, as its byte-order mark says, or UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from patchline.plugin_api import DataError
from patchline.plugins.data_sources.cell_text import shown

_UTF_8 = "utf-8-sig"
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like the mark of UTF-16
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BYTES_LOOKED_AT = 4096
_CONTEXT = 12
_GUESS = "cp1252"


@contextmanager
def opened_text(file: Path, encoding: str | None) -> Iterator[TextIO]:
    """Open a text file, and turn what fails while it is read into one sentence.

    Args:
        file: a table, for example.
        encoding: `data.encoding`; None for UTF-8, or what a byte-order mark says.

    Raises:
        DataError: if it cannot be opened, or is not text in its encoding.
    """
    try:
        with file.open("rb") as binary:
            start = binary.read(_BYTES_LOOKED_AT)
        used = encoding or _marked(start)
        if encoding is None and used == _UTF_8 and b"\0" in start:
            raise DataError(
                f"{file} holds zero bytes, as UTF-16 does without a byte-order mark. Set "
                "--data.encoding utf-16-le (or utf-16-be), or save it as UTF-8."
            )
        if encoding is not None and codecs.lookup(encoding).name == "utf-8":
            used = _UTF_8
        with file.open(encoding=used, newline="") as opened:
            yield opened
    except UnicodeError as error:
        raise DataError(_not_text(file, encoding, error)) from error
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


def _marked(start: bytes) -> str:
    return next((name for mark, name in _MARKS if start.startswith(mark)), _UTF_8)


def _not_text(file: Path, encoding: str | None, error: UnicodeError) -> str:
    if encoding is not None:
        return (
            f"data.encoding is {encoding}, but {file} is not text in it ({shown(str(error))}). Set "
            "another --data.encoding, such as utf-8, utf-16, cp1252 or latin-1."
        )
    if not isinstance(error, UnicodeDecodeError):
        return f"{file} is not text ({shown(str(error))}). Save it as UTF-8."
    around = error.object[max(0, error.start - _CONTEXT) : error.start + _CONTEXT]
    guess = shown(" ".join(around.decode(_GUESS, "replace").split()))
    return (
        f"{file} is not UTF-8 text ({error.reason} at byte {error.start}; in {_GUESS} it reads "
        f"'{guess}'). Set --data.encoding to its encoding, such as {_GUESS}, latin-1 or cp932, or "
        "save it as UTF-8."
    )
