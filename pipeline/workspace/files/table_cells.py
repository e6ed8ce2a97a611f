r"""Text in CSV tables for people, which spreadsheets open.

A cell that starts with `=`, `+`, `-` or `@` is computed as a formula, which may run programs or
send data away (CWE-1236), so it gets an apostrophe in front, as OWASP recommends. Numbers such as
`-0.5` stay as they are. Control characters and those that change the direction of text are written
as `\x1b`, but for line ends, which CSV quotes. Parquet and JSON keep the exact text.
"""

from __future__ import annotations

import re

_FORMULA = re.compile("'*[=+\\-@\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def table_cell(text: str) -> str:
    r"""Return a text as a cell that shows it and computes nothing.

    The name of a file `=1+1.png` becomes `'=1+1.png`; `plain_cell` undoes that.
    """
    if text.isalnum() and text.isascii():
        return text
    shown = _UNSEEN.sub(_escape, text)
    if _FORMULA.match(shown) and not _NUMBER.fullmatch(shown):
        return f"'{shown}"
    return shown


def plain_cell(cell: str) -> str:
    """Return a cell without the apostrophe that `table_cell` has put in front of it."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def printable(text: str) -> str:
    """Return a text that Parquet can store: bytes of a name that are not UTF-8 are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
