"""Font files of this machine that show a text: matplotlib's own, or one of the system.

A picture has no fallback of a browser: a character that no font has would be drawn as a box.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

_UNUSABLE = ("emoji", "color", "lastresort")
"""In the names of fonts whose glyphs are colored bitmaps, which are not drawn in other sizes, and
of one that has a box for every character."""


def font_showing(text: str) -> Path | None:
    """Return the file of a font that has all characters of a text, matplotlib's own if possible.

    None if no font of this machine has them.
    """
    needed = set(map(ord, text))
    return next((file for file in _fonts() if needed <= _characters(file)), None)


def families_showing(texts: Iterable[str]) -> list[str]:
    """Return the names of the fonts that show these texts, for matplotlib's `font.family`."""
    from matplotlib.font_manager import FontProperties

    files = dict.fromkeys(font for text in texts if (font := font_showing(text)))
    families = [FontProperties(fname=str(file)).get_name() for file in (_fonts()[0], *files)]
    return list(dict.fromkeys(families))


@functools.cache
def _fonts() -> tuple[Path, ...]:
    """Return upright fonts, matplotlib's own first, then those of the system by name."""
    import matplotlib as mpl
    from matplotlib import font_manager

    own = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    upright = {
        Path(font.fname)
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.weight in (400, "normal", "regular")
    }
    system = [
        file
        for file in upright
        if file.exists() and not any(word in file.name.lower() for word in _UNUSABLE)
    ]
    return (own, *sorted(system, key=lambda file: (file.name, file)))


@functools.cache
def _characters(file: Path) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(str(file)).get_charmap())
    except (OSError, RuntimeError):  # damaged, or of a kind that FreeType cannot open
        return frozenset()
