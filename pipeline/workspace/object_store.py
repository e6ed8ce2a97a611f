"""What a store of objects does: the one interface behind a workspace that machines share.

Plugins implement it, one for each scheme of an address. Keys are relative paths with `/`.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ConflictError(Exception):
    """The object is not, or no longer, what a conditional write requires."""


class Address(NamedTuple):
    """A place on an object store."""

    scheme: str
    bucket: str
    """Empty for a folder."""
    prefix: str
    """Below the bucket, without `/` at the ends; the absolute path of a folder."""

    @classmethod
    def of_object(cls, text: str) -> Address:
        """Return the address of an object, as `str` returned it; its key is not checked."""
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        return cls(scheme, bucket, key)

    def __str__(self) -> str:
        """Return the address as a user writes it."""
        if self.scheme == "file":
            return f"file://{self.prefix}"
        return f"{self.scheme}://{'/'.join(part for part in (self.bucket, self.prefix) if part)}"


class ObjectState(NamedTuple):
    """What tells a state of an object from every other one, for conditional writes."""

    e_tag: str
    """Changes whenever the object does."""
    version: str = ""
    """Where the store counts versions. On Google Cloud Storage, conditions need it."""


class ObjectInfo(NamedTuple):
    """What a store knows about an object without opening it."""

    key: str
    bytes: int
    e_tag: str
    """Changes whenever the object does."""
    modified: dt.datetime
    """By the clock of the store."""
    version: str = ""
    """Empty where the store counts none, or does not list them."""

    @property
    def state(self) -> ObjectState:
        """What a write can require to be unchanged."""
        return ObjectState(self.e_tag, self.version)


class Content(NamedTuple):
    """An object as it was at one moment."""

    data: bytes
    info: ObjectInfo


class ObjectStore(ABC):
    """Objects by key.

    Every method raises a `StorageError` if the store does not answer or refuses, and a
    `ConfigError` if its address or the credentials are wrong.

    Attributes:
        uri: the address, in messages.
    """

    uri: str

    @abstractmethod
    def read(self, key: str) -> Content | None:
        """Return an object; None if there is none."""

    @abstractmethod
    def read_range(
        self, key: str, start: int, stop: int, *, if_match: str = ""
    ) -> bytes | memoryview | None:
        """Return the bytes of an object from `start` to `stop`; None if there is no such object.

        Fewer bytes are returned where the object ends.

        Args:
            key: of the object.
            start: the first byte.
            stop: the byte after the last.
            if_match: only if the object has this ETag.

        Raises:
            ConflictError: if it has another one.
        """

    @abstractmethod
    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known about an object; None if there is none."""

    @abstractmethod
    def download(self, key: str, file: Path) -> bool:
        """Write an object into a file, and return whether there is one."""

    @abstractmethod
    def write(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: ObjectState | None = None,
    ) -> ObjectState:
        """Write an object as a whole.

        Args:
            key: of the object.
            data: its content.
            if_absent: only if there is none yet.
            if_match: only if it is still in this state.

        Returns:
            The state of the new object.

        Raises:
            ConflictError: if a condition does not hold; nothing is written then.
        """

    @abstractmethod
    def upload(self, file: Path, key: str) -> None:
        """Write the content of a file, of any size, as an object."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with a prefix, in the order of their keys."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object if there is one."""

    @abstractmethod
    def now(self) -> dt.datetime:
        """Return the time by the clock that dates the objects."""
