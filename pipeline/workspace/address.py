"""The address of a workspace or of data on an object store: `s3://bucket/team`."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from patchline.pipeline.errors import ConfigError

SCHEMES = ("s3", "gs", "az", "file")
"""Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage, a folder."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # a single letter is a drive
_SPELLINGS = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


class Address(NamedTuple):
    """A place on an object store."""

    scheme: str
    bucket: str
    """Empty for a folder."""
    prefix: str
    """Below the bucket, without `/` at the ends; the absolute path of a folder."""

    def __str__(self) -> str:
        """Return the address as a user writes it."""
        if self.scheme == "file":
            return f"file://{self.prefix}"
        return f"{self.scheme}://{'/'.join(part for part in (self.bucket, self.prefix) if part)}"


def is_address(text: str) -> bool:
    """Return whether a text is an address, rather than a path or `SOURCE:NAME`."""
    return _SCHEME.match(text) is not None


def is_of_store(text: str) -> bool:
    """Return whether a text is an address of a kind of store that is known here."""
    match = _SCHEME.match(text)
    return match is not None and _scheme(match[1]) in SCHEMES


def only_local(path: object, what: str) -> str:
    """Return a sentence if a path is an address, for what reads files of this machine alone.

    Args:
        path: as it was given, or as `pathlib` changes it: `s3:/bucket/photos`.
        what: reads it, such as `patchline predict`.

    Returns:
        An empty string for a path.
    """
    scheme, colon, rest = str(path).partition(":/")
    if not colon or not is_of_store(f"{scheme}://x"):
        return ""
    return (
        f"{scheme}://{rest.strip('/')} is on an object store, and {what} reads files of this "
        "machine. Download it first."
    )


def parsed(text: str, setting: str) -> Address:
    """Return an address in its parts.

    Args:
        text: the address.
        setting: what it was given for, such as `--workspace`.

    Raises:
        ConfigError: if it is none, holds credentials, or names no bucket.
    """
    match = _SCHEME.match(text)
    scheme = _scheme(match[1]) if match else ""
    named = ", ".join(f"{each}://" for each in SCHEMES)
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{setting} is {text}, which is not an address of an object store. Begin it with one "
            f"of {named}, such as s3://bucket/team."
        )
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"{setting} holds more than a bucket and a path. Give s3://bucket/path alone, and the "
            "credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or in a profile."
        )
    path = parts.path.strip("/")
    if scheme == "file":
        if parts.netloc or not path:
            raise ConfigError(
                f"{setting} is {text}, but the address of a folder has three slashes and an "
                "absolute path: file:///mnt/team."
            )
        return Address(scheme, "", f"/{path}")
    if not parts.netloc:
        raise ConfigError(f"{setting} is {text}, which names no bucket. Give s3://bucket/path.")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ConfigError(
            f"{setting} is {text}, whose path has an empty part or dots. Give the path itself."
        )
    return Address(scheme, parts.netloc, path)


def _scheme(spelling: str) -> str:
    return _SPELLINGS.get(spelling.lower(), spelling.lower())
