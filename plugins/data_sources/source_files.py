"""The file or folder that a source reads, and the files that it writes, such as its example."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchline.plugin_api import DataError


def existing_path(path: str | None, what: str, kind: str = "file or folder") -> Path:
    """Return `data.path`.

    Args:
        path: the value of `data.path`.
        what: the thing that the setting has to name, such as `the archive`.
        kind: the kind of that thing, such as `archive`, for the message that it is not there.

    Raises:
        DataError: if it is not set, or there is no such file or folder.
    """
    if path is None:
        raise DataError(f"data.path is missing. Name {what}.")
    there = Path(path).expanduser()
    if not there.exists():
        raise DataError(f"There is no {kind} {there}. Check the path.")
    return there


def refuse_path(path: str | None, source: str) -> None:
    """Refuse `data.path` for a source that reads none."""
    if path:
        raise DataError(
            f"data.path is {path}, but the source {source} reads no path. Set data.source to "
            "image_folder, or leave data.path out."
        )


def folder_of(base: Path, given: str | None, setting: str, remedy: str) -> Path:
    """Return the folder of the images: what a setting names, which may lie in another, or that.

    Args:
        base: the folder of the table or export.
        given: the value of the setting.
        setting: its name.
        remedy: the thing that the setting has to name, such as `the folder of the images`.

    Raises:
        DataError: if it is no folder.
    """
    if given is None:
        return base
    folder = Path(given).expanduser()
    folder = inside if (inside := base / folder).is_dir() else folder
    if not folder.is_dir():
        raise DataError(f"{setting} is {folder}, which is not a folder. Give {remedy}.")
    return folder.resolve()


@contextmanager
def write_at_once(file: Path) -> Iterator[Path]:
    """Return a name to write a file under, which then takes its place; runs may begin at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.stem}.{uuid.uuid4().hex[:8]}.part")
    yield temporary
    temporary.replace(file)


def example_images(count: int = 6) -> Iterator[tuple[str, bytes]]:
    """Yield small PNG files of two classes, `dark` and `light`, each with its class."""
    from PIL import Image

    for number in range(count):
        label, red = (("dark", 60), ("light", 200))[number % 2]
        content = io.BytesIO()
        Image.new("RGB", (24, 16), (red, 80, 20 * number)).save(content, "PNG")
        yield label, content.getvalue()
