"""The file or folder that a source reads, and the images of the example that each source writes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from patchline.plugin_api import DataError


def existing_path(path: str | None, what: str, kind: str = "file or folder") -> Path:
    """Return `data.path`.

    Args:
        path: the setting.
        what: it has to name, such as `the archive`.
        kind: of what is there.

    Raises:
        DataError: if it is not set, or there is no such file or folder.
    """
    if path is None:
        raise DataError(f"data.path is missing. Name {what}.")
    there = Path(path).expanduser()
    if not there.exists():
        raise DataError(f"There is no {kind} {there}. Check the path.")
    return there


def example_images(count: int = 6) -> Iterator[tuple[str, bytes]]:
    """Yield small PNG files of two classes, `dark` and `light`, each with its class."""
    from PIL import Image

    for number in range(count):
        label, red = (("dark", 60), ("light", 200))[number % 2]
        content = io.BytesIO()
        Image.new("RGB", (24, 16), (red, 80, 20 * number)).save(content, "PNG")
        yield label, content.getvalue()
