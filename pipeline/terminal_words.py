"""Make text from outside, such as file names, safe to print on a terminal."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Control and format characters (directions, nothing wide), surrogates, separators of lines."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return text with control and format characters escaped, such as `\x1b`.

    Args:
        text: a name, a reason, a sentence with names in it.
        lines: whether to keep line ends and tabs, for our own text of several lines.
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
