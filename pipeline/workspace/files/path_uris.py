"""Paths as URIs and back: a SQLite file for SQLAlchemy, a folder of artifacts for MLflow.

SQLAlchemy takes the path in `sqlite:///PATH` as it stands, but ends it at the first `?`; MLflow
unquotes `%25` in an artifact root; Prefect looks for `:memory:` anywhere. So a path with nothing
but letters, digits and a few harmless characters is written as it stands, which is what MLflow's
own commands print and read. Any other path becomes a `file:` URI, percent-encoded (RFC 8089),
which SQLite opens by itself (https://sqlite.org/uri.html).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode

from patchline.pipeline.errors import ConfigError

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
        asynchronous: for Prefect, whose driver is aiosqlite.
        options: of the driver, such as the `timeout` in seconds.
    """
    path = str(file)
    if _is_ordinary(path):
        driver, place, query = _ASYNC if asynchronous else "sqlite", path, options
    else:
        # With the driver in its name: MLflow would make folders for the path in `sqlite:///`.
        driver, place = _ASYNC if asynchronous else _SYNC, f"file://{_quoted(path)}"
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
    return path if _is_ordinary(path) else f"file://{_quoted(path)}"


def artifact_path(uri: str) -> Path | None:
    """Return the folder that MLflow's artifact URI names; none if it is not on this machine."""
    if uri.startswith("file:"):
        return Path(os.fsdecode(unquote_to_bytes(re.sub(r"^file:(//(localhost)?(?=/))?", "", uri))))
    return Path(uri) if uri.startswith("/") else None


def _is_ordinary(path: str) -> bool:
    return _ORDINARY.fullmatch(path) is not None


def _quoted(path: str) -> str:
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
