"""What a store of objects does: the one interface behind a workspace that machines share.

Plugins implement it, one for each scheme of an address. Keys are relative paths with `/`.

In a folder, an object is a file; a write renames a complete file into place. Conditions are checked
under a lock on the folder, so that they hold between the processes of one machine, and between
machines if the file system passes locks on.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.paths import safe_join
from patchline.pipeline.workspace.files.workspace_folder import make_folder


class ConflictError(Exception):
    """The object is not, or no longer, what a conditional write requires."""


class Address(NamedTuple):
    """A place on an object store."""

    scheme: str
    bucket: str
    """Name of the bucket; empty for a folder."""
    prefix: str
    """Path below the bucket, without `/` at the ends; the absolute path of a folder."""

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
    """Tag that changes whenever the object does."""
    version: str = ""
    """Version, where the store counts them. On Google Cloud Storage, conditions need it."""


class ObjectInfo(NamedTuple):
    """What a store knows about an object without opening it."""

    key: str
    bytes: int
    e_tag: str
    """Tag that changes whenever the object does."""
    modified: dt.datetime
    """Time of the last change, by the clock of the store."""
    version: str = ""
    """Version; empty where the store counts none, or does not list them."""

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
            key: the key of the object to read.
            start: the first byte.
            stop: the byte after the last.
            if_match: the ETag that the object must have; empty for any.

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
            key: the key of the object to write.
            data: the content of the object.
            if_absent: whether to write only if there is no such object yet.
            if_match: the state that the object must still be in; None for any.

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


_LOCK = ".lock"
_PART = ".part"


class FolderStore(ObjectStore):
    """The objects in a folder.

    Args:
        folder: the folder for the objects, which is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.uri = self._folder.as_uri()

    def read(self, key: str) -> Content | None:
        """Return an object; None if there is none."""
        with self._reading(), self._file(key).open("rb") as opened:
            return Content(opened.read(), _info(key, os.fstat(opened.fileno())))
        return None

    def read_range(self, key: str, start: int, stop: int, *, if_match: str = "") -> bytes | None:
        """Return the bytes of an object from `start` to `stop`; None if there is none."""
        if if_match and self._e_tag(key) != if_match:
            raise ConflictError(key)
        with self._reading(), self._file(key).open("rb") as opened:
            opened.seek(start)
            return opened.read(stop - start)
        return None

    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known about an object; None if there is none."""
        with self._reading():
            return _info(key, self._file(key).stat())
        return None

    def download(self, key: str, file: Path) -> bool:
        """Write an object into a file, and return whether there is one."""
        source = self._file(key)
        with storage_errors(file), self._reading():
            shutil.copyfile(source, file)
            return True
        return False

    def write(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: ObjectState | None = None,
    ) -> ObjectState:
        """Write an object as a whole, if the conditions hold."""
        is_conditional = if_absent or if_match is not None
        with hold_lock(self._folder / _LOCK) if is_conditional else nullcontext():
            present = self._e_tag(key) if is_conditional else ""
            if present if if_match is None else present != if_match.e_tag:
                raise ConflictError(key)
            with replace_file(self._file(key)) as part:
                part.write_bytes(data)
            return ObjectState(self._e_tag(key))

    def upload(self, file: Path, key: str) -> None:
        """Write the content of a file as an object."""
        with replace_file(self._file(key)) as part:
            shutil.copyfile(file, part)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with a prefix, in the order of their keys."""
        top = self._folder / prefix.rpartition("/")[0]
        for file in sorted(each for each in top.rglob("*") if each.is_file()):
            key = file.relative_to(self._folder).as_posix()
            if key.startswith(prefix) and not file.name.startswith("."):
                info = self.info(key)
                if info is not None:
                    yield info

    def delete(self, key: str) -> None:
        """Delete an object if there is one."""
        with storage_errors(self._file(key)):
            self._file(key).unlink(missing_ok=True)

    def now(self) -> dt.datetime:
        """Return the time by the clock of the file system."""
        probe = self._folder / f".clock-{uuid.uuid4().hex[:8]}{_PART}"
        with storage_errors(probe):
            make_folder(probe.parent)
            probe.touch()
            try:
                return _time(probe.stat())
            finally:
                probe.unlink()

    def _file(self, key: str) -> Path:
        return safe_join(self._folder, key, self.uri)

    def _e_tag(self, key: str) -> str:
        info = self.info(key)
        return info.e_tag if info else ""

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Pass over a missing file, and say why another one cannot be read."""
        try:
            yield
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise StorageError(
                f"{self.uri} may not be read ({error.strerror}). Ask its owner for access, or "
                "choose another --workspace."
            ) from error


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    e_tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, e_tag, _time(status))


def _time(status: os.stat_result) -> dt.datetime:
    return dt.datetime.fromtimestamp(status.st_mtime, dt.UTC)
