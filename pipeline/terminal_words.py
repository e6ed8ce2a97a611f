"""Text from outside, file names above all, as a terminal may show it."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Control and format characters (directions, nothing wide), surrogates, separators of lines."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return text in which whatever a terminal would obey is written out, as `\x1b` is.

    Args:
        text: a name, a reason, a sentence with names in it.
        lines: whether line ends and tabs stay, in text of several lines that is our own.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(each, lines=lines) for each in text)


def _shown(character: str, *, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
