"""Lists of files that are passed to the worker of a part, as lines of JSON.

Names that are not UTF-8 survive: JSON escapes what a settings file could not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from patchline.pipeline.workspace.files.workspace_folder import make_folder


def write_lines(file: Path, lines: Iterable[Any]) -> Path:
    """Write each value as a line, create the folder if needed, and return the file."""
    make_folder(file.parent)
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(line) + "\n" for line in lines)
    return file


def read_lines(file: Path) -> Iterator[Any]:
    """Yield the value of each line; tuples have become lists."""
    with file.open(encoding="utf-8") as opened:
        yield from map(json.loads, opened)
