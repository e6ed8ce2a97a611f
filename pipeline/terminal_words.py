"""Text for people: names from outside made harmless, paths to paste, durations, counts, shares."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from patchline.pipeline.workers.host.output_streams import rewrite_descriptor, rewrite_stream

_STYLED = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
"""Variables with which Rich writes colors to something that is no terminal."""

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Control and format characters (directions, nothing wide), surrogates, separators of lines."""
_JOINERS = "\u200c\u200d"
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What a terminal obeys instead of showing it, but for line ends and tabs."""
_OWN_SEQUENCES = re.compile(
    "\x1b\\[[0-9;]*m"  # colors
    "|\x1b\\[[0-9]*[A-GJK]|\x1b\\[\\?25[hl]|\r"  # a progress bar is drawn again
    "|\x1b\\]8;[ -:<-~]*;[ -~]*\x1b\\\\"  # links
)
"""What Rich writes to a terminal."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return text with control and format characters escaped, such as `\x1b`.

    Args:
        text: a name, a reason, a sentence with names in it.
        lines: whether to keep line ends and tabs, for our own text of several lines.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = [_escape_character(each, lines=lines) for each in text]
    for place in range(1, len(text) - 1):
        if text[place] in _JOINERS and not (text[place - 1] + text[place + 1]).isascii():
            shown[place] = text[place]  # emoji, and scripts whose letters are joined, need them
    return "".join(shown)


def _escape_character(character: str, *, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def harmless(text: str) -> str:
    r"""Return text in which whatever a terminal obeys is written out, but for line ends and tabs.

    Names are made visible where they are shown; this is for whatever else is printed, such as the
    warnings of libraries.
    """
    if not _OBEYED.search(text):
        return text
    return _OBEYED.sub(_write_out, text.replace("\r\n", "\n"))


def escape_except_styles(text: str) -> str:
    """Return the same, but let the colors and the cursor movements of Rich pass."""
    if not _OBEYED.search(text):
        return text
    text = text.replace("\r\n", "\n")
    own = list(_OWN_SEQUENCES.finditer(text))
    edges = [0, *(edge for each in own for edge in each.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    return "".join(part if place % 2 else harmless(part) for place, part in enumerate(parts))


def _write_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def protect_terminal() -> None:
    """Write out whatever this process prints, warns of or logs that a terminal would obey.

    Only a terminal gets colors and cursor movements, and only from Python: what C libraries write
    holds names and other bytes of files.
    """
    rewrite_descriptor(harmless)
    rewrite_stream("stdout", _rewrite_for(sys.stdout))
    rewrite_stream("stderr", _rewrite_for(sys.stderr))
    warnings.formatwarning = _visible_warning


def _rewrite_for(stream: TextIO | None) -> Callable[[str], str]:
    is_styled = stream is not None and stream.isatty()
    return escape_except_styles if is_styled or any(map(os.environ.get, _STYLED)) else harmless


def _visible_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning as Python formats it, with the names in it made visible."""
    text = visible(f"{filename}:{lineno}: {category.__name__}: {message}", lines=True)
    return f"{text}\n  {visible(line.strip())}\n" if line else f"{text}\n"


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the working directory if it is below it."""
    relative = os.path.relpath(path)
    return os.fspath(path) if relative.startswith("..") else relative


def pasted_path(path: str) -> str:
    """Return the shortest form of a path that a shell reads as that path, in visible characters."""
    shown = short_path(path)
    shown = f"./{shown}" if shown.startswith("-") else shown
    if visible(shown) == shown:
        return shlex.quote(shown)
    return f"$'{''.join(map(_ansi_quoted, shown))}'"


def find_program(name: str) -> tuple[str, str]:
    """Return how to call a program of this environment, and a command that is needed before.

    The program's name is enough where it is on the PATH, or will be once the environment is
    activated; otherwise its path is returned. The second value is empty if nothing is needed.
    """
    beside = Path(sys.executable).parent / name
    match = shutil.which(name)
    if match and beside.exists() and Path(match).samefile(beside):
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


def percent(share: float, digits: int = 1) -> str:
    """Return a share as percent with some decimals; only exact 0 and 1 become 0% and 100%."""
    text, least = f"{100 * float(share):.{digits}f}", 10**-digits
    if float(text) == 100 and share < 1:  # noqa: PLR2004 - percent
        return f">{100 - least:.{digits}f}%"
    if float(text) == 0 and share > 0:
        return f"<{least:.{digits}f}%"
    return f"{text}%"


def epochs_in_words(epochs: float) -> str:
    """Return a length with two digits: `12 epochs`, `0.01 epochs (1% of the images)`."""
    if epochs < 0.1:  # noqa: PLR2004 - rounded, it would be nothing
        return f"{epochs:.2g} epochs ({100 * epochs:.2g}% of the images)"
    number = f"{epochs:.1f}".removesuffix(".0") if epochs < 10 else f"{epochs:,.0f}"  # noqa: PLR2004
    return f"{number} epoch{'' if number == '1' else 's'}"


def few_names(names: Iterable[str], most: int = 5, joint: str = ", ") -> str:
    """Return the first names, and how many more there are: `a, b and 4 more`."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return joint.join(every[:most]) + more


def by_number(number: int, one: str, many: str) -> str:
    """Return the word that agrees with a number: `is` or `are`."""
    return one if number == 1 else many


def _ansi_quoted(character: str) -> str:
    r"""Return a character as it is written in Bash's and Zsh's $'...'."""
    if character in "\\'":
        return f"\\{character}"
    if visible(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))
