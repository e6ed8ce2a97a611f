"""Lists of the images of a split beside a table without splits, such as `test_list.txt`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from patchline.plugin_api import DataError
from patchline.plugins.data_sources.table_columns import NO_COLUMN

_SPLIT_WORD = re.compile(r"(?:^|[^a-z])(?:train|val|dev|test)", re.IGNORECASE)
_SUFFIXES = (".txt", ".lst", ".list")


def ask_about_lists(file: Path, images: Collection[str]) -> None:
    """Ask about lists that name images of a table, which has no column of splits.

    Args:
        file: the table, or the folder of its parts.
        images: their paths or names.

    Raises:
        DataError: if there is such a list.
    """
    folder = file if file.is_dir() else file.parent
    lists = sorted(
        each
        for each in folder.iterdir()
        if each.suffix.lower() in _SUFFIXES and _SPLIT_WORD.search(each.stem) and each.is_file()
    )
    own = {name for image in images for name in _names(image)} if lists else set()
    for each in lists:
        lines = list(_lines(each))
        named = sum(bool(own.intersection(_names(line))) for line in lines)
        if 2 * named > len(lines):
            raise DataError(
                f"{file} has no column of splits, and {each.name} beside it lists {named:,} of its "
                f"{len(set(images)):,} images. Add a column split with train, validation and test, "
                f"or set --data.split-column {NO_COLUMN} to have Patchline split all of them."
            )


def _lines(file: Path) -> Iterator[str]:
    """Yield the first word of each line: a number of the class may follow the name."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(
            f"{file} cannot be read ({error.strerror}). Check its permissions, or move it away."
        ) from error
    return (line.split()[0] for line in text.splitlines() if line.strip())


def _names(path: str) -> tuple[str, str]:
    """Return the file's name of a path, and that without its suffix."""
    plain = PurePosixPath(path.strip().replace("\\", "/"))
    return plain.name, plain.stem
