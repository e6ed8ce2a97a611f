"""Files beside the images that other programs leave: thumbnails, recycle bins, folder settings.

What a pattern matches is skipped wherever images are listed, as hidden files are. A pattern without
a slash matches the name of a file or a folder at any depth, one that ends in a slash that of a
folder, and any other the path below the data's folder. `*`, `?` and `[…]` are wildcards; upper and
lower case do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate

DEFAULT = "default"
"""Stands for the default patterns in a list of patterns."""
DEFAULT_PATTERNS = (
    "@eaDir/", "#recycle/", "#snapshot/", "@Recycle/", "@Recently-Snapshot/", "SYNOFILE_THUMB_*",
    "SYNOPHOTO_THUMB_*", "$RECYCLE.BIN/", "RECYCLER/", "System Volume Information/", "lost+found/",
    "Thumbs.db", "ehthumbs*.db", "desktop.ini", "__MACOSX/", "Icon\r", "Network Trash Folder/",
    "Temporary Items/", "__pycache__/",
)  # fmt: skip
"""Left by network storage (Synology, QNAP), Windows, Linux and macOS; those of names that begin
with a dot are skipped in any case."""
OnIgnored = Callable[[str], None]
"""Called with the path of each file that is skipped, or of each folder, which ends in a slash."""


class IgnoredFiles:
    """Tells which files and folders are skipped.

    Args:
        patterns: as in the module docstring; `default` stands for the default ones.
    """

    def __init__(self, patterns: Sequence[str] = (DEFAULT,)) -> None:
        given: Iterable[str] = patterns
        if DEFAULT in patterns:
            given = (*DEFAULT_PATTERNS, *(each for each in patterns if each != DEFAULT))
        plain = [pattern.casefold() for pattern in given if pattern.strip("/")]
        names = [each.rstrip("/") for each in plain if "/" not in each.rstrip("/")]
        files = [each for each in plain if "/" not in each]
        self._folder = _any_of(names)
        self._file = _any_of(files)
        self._path = _any_of([each.strip("/") for each in plain if "/" in each.rstrip("/")])

    def skips(self, path: str, name: str, *, is_folder: bool) -> bool:
        """Return whether a file or a folder is skipped.

        Args:
            path: below the data's folder, with forward slashes.
            name: its last part.
            is_folder: whether it is a folder.
        """
        rule = self._folder if is_folder else self._file
        if rule is not None and rule(name.casefold()):
            return True
        return self._path is not None and bool(self._path(path.casefold()))

    def skipped_part(self, path: str) -> str:
        """Return the part of a file's path that is skipped, a folder with a slash; empty if none.

        `a/@eaDir/1.jpg/thumb.jpg` is skipped because of `a/@eaDir/`.
        """
        start = 0
        while (end := path.find("/", start)) >= 0:
            if self.skips(path[:end], path[start:end], is_folder=True):
                return path[: end + 1]
            start = end + 1
        return path if self.skips(path, path[start:], is_folder=False) else ""

    def remaining(self, paths: Iterable[str], on_ignored: OnIgnored | None = None) -> list[str]:
        """Return the paths of files that are not skipped; each skipped part is reported once."""
        folders: dict[str, str] = {}
        reported: set[str] = set()
        kept = []
        for path in paths:
            folder = path.rpartition("/")[0]
            part = folders.get(folder)
            if part is None:
                part = folders[folder] = self.skipped_part(f"{folder}/")[:-1] if folder else ""
            if not part and not self.skips(
                path, path[len(folder) + bool(folder) :], is_folder=False
            ):
                kept.append(path)
                continue
            skipped = f"{part}/" if part else path
            if on_ignored and skipped not in reported:
                reported.add(skipped)
                on_ignored(skipped)
        return kept


def _any_of(patterns: Sequence[str]) -> Callable[[str], re.Match[str] | None] | None:
    """Return a function that matches any of some patterns; None without patterns."""
    if not patterns:
        return None
    return re.compile("|".join(map(translate, dict.fromkeys(patterns)))).match


DEFAULT_IGNORED = IgnoredFiles()
