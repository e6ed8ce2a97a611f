"""Paths as other programs and people write them: URIs, `~`, and names that must stay in a folder.

SQLAlchemy takes the path in `sqlite:///PATH` as it stands, but ends it at the first `?`; MLflow
unquotes `%25` in an artifact root; Prefect looks for `:memory:` anywhere. So a path with nothing
but letters, digits and a few harmless characters is written as it stands, which is what MLflow's
own commands print and read. Any other path becomes a `file:` URI, percent-encoded (RFC 8089),
which SQLite opens by itself (https://sqlite.org/uri.html).

`safe_join` is the one way in which such a path becomes a file of this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

from patchline.pipeline.errors import ConfigError, DataError

_ORDINARY = re.compile(r"[\w./~+, -]*")
"""Paths without a character that one of the libraries would interpret."""
_DATABASE = re.compile(
    r"(?P<driver>sqlite(?:\+\w+)?):///(?P<path>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL
)
_SYNC, _ASYNC = "sqlite+pysqlite", "sqlite+aiosqlite"


def sqlite_uri(file: Path, *, asynchronous: bool = False, **options: object) -> str:
    """Return SQLAlchemy's URI of a SQLite file.

    Args:
        file: an absolute path.
        asynchronous: whether the URI is for Prefect, whose driver is aiosqlite.
        options: options of the driver, such as the `timeout` in seconds.
    """
    path = str(file)
    if _is_ordinary(path):
        driver, place, query = _ASYNC if asynchronous else "sqlite", path, options
    else:
        # With the driver in its name: MLflow would make folders for the path in `sqlite:///`.
        driver, place = _ASYNC if asynchronous else _SYNC, f"file://{_quote(path)}"
        query = {**options, "uri": "true"}
    return f"{driver}:///{place}" + (f"?{urlencode(query)}" if query else "")


def sqlite_path(uri: str) -> Path | None:
    """Return the file that a SQLAlchemy URI names, as it was given; none for another database."""
    match = _DATABASE.fullmatch(uri)
    if match is None or match["path"] in ("", ":memory:"):
        return None
    place = match["path"]
    if place.startswith("file:") and dict(parse_qsl(match["query"] or "")).get("uri") == "true":
        encoded = place.removeprefix("file:")
        return Path(os.fsdecode(unquote_to_bytes(re.sub(r"^//(localhost)?(?=/)", "", encoded))))
    return Path(place)


def with_options(uri: str, **options: object) -> str:
    """Return a SQLAlchemy URI with more options of its driver."""
    return f"{uri}{'&' if '?' in uri else '?'}{urlencode(options)}"


def artifact_uri(folder: Path) -> str:
    """Return what MLflow stores for a folder of artifacts: an absolute path, or its `file:` URI."""
    path = str(folder)
    return path if _is_ordinary(path) else f"file://{_quote(path)}"


def artifact_path(uri: str) -> Path | None:
    """Return the folder that MLflow's artifact URI names; none if it is not on this machine."""
    if uri.startswith("file:"):
        return Path(os.fsdecode(unquote_to_bytes(re.sub(r"^file:(//(localhost)?(?=/))?", "", uri))))
    return Path(uri) if uri.startswith("/") else None


def _is_ordinary(path: str) -> bool:
    return _ORDINARY.fullmatch(path) is not None


def _quote(path: str) -> str:
    """Return a path percent-encoded.

    Raises:
        ConfigError: if its bytes are not UTF-8, which neither MLflow nor Prefect can store.
    """
    try:
        return quote(path.encode(), safe="/")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"The path {str(os.fsencode(path))[1:]} is not valid UTF-8, so MLflow and Prefect "
            "cannot store it. Rename the folder with that name."
        ) from error


_DRIVE = re.compile(r"[A-Za-z]:")
_SEPARATORS = re.compile(r"[/\\]")
_LONGEST_NAME, _LONGEST_PATH = 255, 4096
"""Bytes that file systems of Linux and macOS take."""
_SHOWN = 200


def safe_join(folder: Path, path: str, source: object) -> Path:
    """Return the file that a relative path names below a folder.

    Args:
        folder: the folder, which need not exist.
        path: a relative path from elsewhere, with forward slashes.
        source: where the path comes from, for the message.

    Raises:
        DataError: if it leads out of the folder, also through a link, or no file can have it.
    """
    reason = unsafe_reason(path) or _length_reason(path)
    if not reason:
        file = folder / path
        if _is_below(os.path.realpath(file), os.path.realpath(folder)):
            return file
        reason = f"leads out of {folder} through a link"
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    raise DataError(
        f"{source} names the path {shown!r}, which {reason}. Nothing was written there. Remove it, "
        "and check who can write to its source."
    )


def unsafe_reason(path: str) -> str:
    """Return why a relative path is not one that stays in its folder; empty if it is.

    A backslash separates names on Windows, so it is taken for a separator, too.
    """
    parts = _SEPARATORS.split(path)
    if ".." in parts:
        return "leads out of its folder"
    if path.startswith(("/", "\\")):
        return "is absolute"
    if _DRIVE.match(path):
        return "begins like a drive of Windows"
    if any(part in ("", ".") for part in parts):
        return "has a part that is empty or '.'"
    if "\0" in path:
        return "has a null byte"
    return ""


def _length_reason(path: str) -> str:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_NAME:
        return f"is longer than a file system takes ({_LONGEST_NAME} bytes for each name in it)"
    return ""


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


def expand_user(path: str | Path, setting: str) -> Path:
    """Return a path with the user's folder in place of `~`.

    Args:
        path: the path as it was given.
        setting: the key that it was given for.

    Raises:
        ConfigError: if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0][1:]
        raise ConfigError(
            f"{setting} is {path}, but there is no user '{user}'. Check the path."
        ) from error


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value in which every text was changed, such as the paths in it."""
    if isinstance(value, dict):
        return {key: map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [map_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value
