"""Text for people: names from outside made harmless, paths to paste, durations, counts."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import unicodedata
from pathlib import Path

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


def pasted_path(path: str) -> str:
    """Return the shortest form of a path that a shell reads as that path, in visible characters."""
    relative = os.path.relpath(path)
    shown = path if relative.startswith("..") else relative
    shown = f"./{shown}" if shown.startswith("-") else shown
    if visible(shown) == shown:
        return shlex.quote(shown)
    return f"$'{''.join(map(_ansi_quoted, shown))}'"


def pasted_program(name: str) -> tuple[str, str]:
    """Return how to call a program of this environment, and a command that is needed before.

    The program's name is enough where it is on the PATH, or will be once the environment is
    activated; otherwise its path is returned. The second value is empty if nothing is needed.
    """
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found and beside.exists() and Path(found).samefile(beside):
        return name, ""
    activate = beside.with_name("activate")
    if activate.exists():
        return name, f"source {pasted_path(str(activate))}"
    return pasted_path(str(beside)), ""


def duration(seconds: float) -> str:
    """Return seconds as a person says them: 40 s, 5 min, 2.5 h; at least 1 s."""
    if seconds < 90:  # noqa: PLR2004 - shorter in seconds
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 image`, `2,000 images`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _ansi_quoted(character: str) -> str:
    r"""Return a character as it is written in Bash's and Zsh's $'...'."""
    if character in "\\'":
        return f"\\{character}"
    if visible(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))
