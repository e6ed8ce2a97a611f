"""The address of a workspace or of data on an object store: `s3://bucket/team`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.workspace.object_store import Address

_BUILT_IN = ("s3", "gs", "az", "file")
"""Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, a folder."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+._-]+)://")  # a single letter is a drive
_MISTYPED = re.compile(
    r"(s3a?|gs|gcs|az|abfss?)(?:[:;]|[:;]?//?|:\\\\?)([^/\\:;].*)", re.IGNORECASE
)
"""Such as `s3:/bucket`, `s3//bucket`, which `pathlib` makes `s3/bucket`, and `s3:bucket`."""
_MISTYPED_FILE = re.compile(r"file:/?([^/].*)", re.IGNORECASE)
_CONTAINERS = {"s3": "bucket", "gs": "bucket", "az": "container"}
_BUCKETS = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"\$root|\$web|[a-z0-9](?:-?[a-z0-9]){2,62}"),
}
_RULES = {
    "s3": "3 to 63 lowercase letters, digits, hyphens and dots",
    "gs": "3 to 222 lowercase letters, digits, hyphens, underscores and dots",
    "az": "3 to 63 lowercase letters, digits and single hyphens",
}
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Where the credentials of each kind of store are given."""
_ELSEWHERE = "the place that its plugin documents"
_SPELLINGS = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def is_address(text: str) -> bool:
    """Return whether a text is an address, rather than a path or `SOURCE:NAME`."""
    return _SCHEME.match(text) is not None


def is_of_store(text: str) -> bool:
    """Return whether a text is an address of a store for which a plugin is installed."""
    match = _SCHEME.match(text)
    return match is not None and is_known(_scheme(match[1]))


def is_known(scheme: str) -> bool:
    """Return whether a store plugin has the name of a scheme."""
    return scheme in _BUILT_IN or bool(plugin_loader.list_installed("store", scheme))


def of_path(path: object) -> str:
    """Return the address that a path is, also as `pathlib` changes it: `s3:/bucket/photos`.

    Returns:
        An empty string for any other path, and for one that exists.
    """
    scheme, colon, rest = str(path).partition(":/")
    if not colon or not is_of_store(f"{scheme}://x") or _exists(str(path)):
        return ""
    slashes = "///" if scheme == "file" else "//"
    return f"{scheme}:{slashes}{rest.lstrip('/')}"


def check_spelling(text: str, setting: str) -> None:
    """Refuse a text that was meant as an address, unless there is such a path.

    Args:
        text: what a user gave.
        setting: what it was given for, such as `--workspace`.

    Raises:
        ConfigError: with the address that was probably meant.
    """
    if is_of_store(text.strip()) or _exists(text):
        return
    meant = ""
    if match := _MISTYPED.fullmatch(text.strip()):
        meant = f"{_scheme(match[1])}://{match[2]}"
    elif file := _MISTYPED_FILE.fullmatch(text.strip()):
        meant = f"file:///{file[1]}"
    if meant and _may_hold_secret(text):
        meant, text = f"{meant.partition('://')[0]}://bucket/path", "mistyped"
    if meant:
        raise ConfigError(
            f"{setting} is {text}, which is neither a path that exists nor an address. Write "
            f"{meant}, if that is what you mean."
        )
    if is_address(text.strip()):
        raise _no_store(text, setting)


def parse_address(text: str, setting: str) -> Address:
    """Return an address in its parts.

    Args:
        text: the address.
        setting: what it was given for, such as `--workspace`.

    Raises:
        ConfigError: if it is none, holds credentials, or names no bucket.
    """
    text = text.strip()
    match = _SCHEME.match(text)
    scheme = _scheme(match[1]) if match else ""
    if not is_known(scheme):
        raise _no_store(text, setting)
    if scheme == "file" and (folder := _folder_in(text)):
        return Address(scheme, "", folder)
    try:
        parts = urlsplit(f"store://{text.partition('://')[2]}")  # whatever its scheme is
    except ValueError as error:
        raise ConfigError(
            f"{setting} is {text}, which is not an address ({error}). Give s3://bucket/path."
        ) from error
    _check_nothing_else(text, setting, scheme, parts)
    path = parts.path.strip("/")
    if scheme == "file":
        if parts.netloc or not path:
            raise ConfigError(
                f"{setting} is {text}, but the address of a folder has three slashes and an "
                "absolute path: file:///mnt/team."
            )
        return Address(scheme, "", f"/{path}")
    container = _CONTAINERS.get(scheme, "bucket")
    if not parts.netloc:
        raise ConfigError(
            f"{setting} is {text}, which names no {container}. Give {scheme}://{container}/path."
        )
    if (rule := _BUCKETS.get(scheme)) and not rule.fullmatch(parts.netloc):
        raise ConfigError(
            f"{setting} is {text}, but no {container} has the name '{parts.netloc}': "
            f"names have {_RULES[scheme]}. Correct the address."
        )
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ConfigError(
            f"{setting} is {text}, whose path has an empty part or dots. Give the path itself."
        )
    return Address(scheme, parts.netloc, path)


def _check_nothing_else(text: str, setting: str, scheme: str, parts: SplitResult) -> None:
    """Refuse an address with more than a bucket and a path."""
    container = "" if scheme == "file" else _CONTAINERS.get(scheme, "bucket")
    if "@" not in parts.netloc and (parts.query or parts.fragment):
        named = text.partition("?")[0].partition("#")[0]
        raise ConfigError(
            f"{setting} is {named}{text[len(named)]}…, but no query, signature or version is read "
            f"behind a '?' or '#', nor a key with one. Give {named} alone, or rename the object."
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"{setting} holds more than a {container or 'folder'} and a path. Give "
            f"{scheme}://{container}/path alone, and the credentials in "
            f"{CREDENTIALS.get(scheme, _ELSEWHERE)}."
        )


def _folder_in(text: str) -> str:
    """Return the absolute path that is in `file:///…` as it stands, or else decoded, if it exists.

    Returns:
        An empty string if neither exists.
    """
    path = text.partition("://")[2]
    both = (f"/{each.strip('/')}" for each in (path, unquote(path)) if path.startswith("/"))
    return next((each for each in both if each != "/" and _exists(each)), "")


def _may_hold_secret(text: str) -> bool:
    return "@" in text or "?" in text


def _no_store(text: str, setting: str) -> ConfigError:
    if _may_hold_secret(text):
        text = f"{text.partition('://')[0]}://…"
    others = (each.name for each in plugin_loader.list_installed("store"))
    named = ", ".join(f"{each}://" for each in dict.fromkeys((*_BUILT_IN, *others)))
    return ConfigError(
        f"{setting} is {text}, which is not an address of an object store. Begin it with one "
        f"of {named}, such as s3://bucket/team."
    )


def _scheme(spelling: str) -> str:
    return _SPELLINGS.get(spelling.lower(), spelling.lower())


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a name, a zero byte in it
        return False
