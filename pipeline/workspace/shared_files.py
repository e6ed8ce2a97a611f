"""Files that machines share through a store of objects: contents by digest, and names for them.

    patchline.json                     says that a workspace lives here, and in which format
    files/3f/3f9a…                     the content of a file, named after its SHA-256
    names/stages/train/0b1c….json      a name: which files belong to it, by path and digest

A name is written after everything that it refers to, in one piece and with a digest of its own. So
a machine that is killed in between leaves contents without a name, and never a name without its
contents. What is read is compared with its digest; a damaged object is deleted, so that whoever
computes it again uploads it again.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from patchline.pipeline.errors import ConfigError, DataError, PipelineError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.paths import safe_join, unsafe_reason
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.object_store import ConflictError, ObjectState, ObjectStore

MARKER, FILES, NAMES = "patchline.json", "files/", "names/"
_PROBES = "probes/"
"""Objects that are deleted again at once."""
_FORMAT = 1
_AT_ONCE = 8
"""Files that are transferred at the same time."""


class Reference(FrozenModel):
    """What a name stands for."""

    files: dict[str, FileDigest] = Field(default_factory=dict)
    """Digest and size of each file, by its path in a folder."""
    value: dict[str, Any] = Field(default_factory=dict)
    """What else belongs to it, as JSON."""


class Named(NamedTuple):
    """A reference and the state of the store in which it was read."""

    reference: Reference
    state: ObjectState


class DamagedObjectError(Exception):
    """An object is missing, or is not what its name says."""


class SharedFiles:
    """The shared files of a workspace.

    Args:
        store: the store that holds the files.
        on_note: called with a sentence when an object is damaged.
    """

    def __init__(self, store: ObjectStore, on_note: Callable[[str], None] = lambda _: None) -> None:
        self.store, self.on_note = store, on_note
        self.id = ""
        """Id of the workspace, also where its objects were copied to; known once it is open."""
        self._present = set[str]()
        """Digests of contents that this process knows to be in the store."""

    @property
    def uri(self) -> str:
        """The address of the workspace."""
        return self.store.uri

    # -- the workspace ---------------------------------------------------------------------------

    def open(self) -> None:
        """Make sure that a workspace of this format lives here; begin one if there is none.

        Raises:
            ConfigError: if the store cannot hold one.
            StorageError: if the store does not answer, or may not be read or written.
        """
        content = self.store.read(MARKER)
        data = self._begun() if content is None else content.data
        try:
            marker = json.loads(data)
            version, self.id = marker["format"], str(marker.get("id", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.uri}/{MARKER} was not written by Patchline. Choose another --workspace."
            ) from error
        if version != _FORMAT:
            raise ConfigError(
                f"The workspace {self.uri} has the format {version}, and this Patchline reads "
                f"{_FORMAT}. Install the Patchline that wrote it, or choose another --workspace."
            )

    def _begun(self) -> bytes:
        """Write the marker, once the store has shown that it keeps conditional writes."""
        self._check_conditions()
        data = json.dumps({"format": _FORMAT, "id": uuid.uuid4().hex}).encode()
        with suppress(ConflictError):  # another machine was faster
            self.store.write(MARKER, data, if_absent=True)
        present = self.store.read(MARKER)
        return present.data if present else data

    def _check_conditions(self) -> None:
        """Try both conditions on an object that nobody else knows.

        Raises:
            ConfigError: if the store ignores one.
        """
        probe = f"{_PROBES}{uuid.uuid4().hex}"
        try:
            first = self.store.write(probe, b"first", if_absent=True)
            self._check_refused(
                "If-None-Match", lambda: self.store.write(probe, b"", if_absent=True)
            )
            self.store.write(probe, b"second", if_match=first)
            self._check_refused("If-Match", lambda: self.store.write(probe, b"", if_match=first))
        finally:
            with suppress(PipelineError):
                self.store.delete(probe)

    def _check_refused(self, condition: str, write: Callable[[], object]) -> None:
        try:
            write()
        except ConflictError:
            return
        raise ConfigError(
            f"{self.uri} ignores conditions on writes ({condition}), so machines could overwrite "
            "each other's results. Choose a store that knows them, as S3 does."
        )

    def check_writable(self) -> None:
        """Write an object and delete it again.

        Raises:
            StorageError: if that fails.
        """
        probe = f"{_PROBES}{uuid.uuid4().hex}"
        self.store.write(probe, b"")
        self.store.delete(probe)

    # -- names -----------------------------------------------------------------------------------

    def find(self, name: str) -> Named | None:
        """Return what a name stands for; None if there is none, or if it is damaged."""
        try:
            return self.lasting(name)
        except DamagedObjectError:
            self._damaged(f"the object {_key(name)}", _key(name))
            return None

    def lasting(self, name: str) -> Named | None:
        """Return what a name stands for that cannot be computed again; None if there is none.

        Raises:
            DamagedObjectError: if it is damaged; the object stays.
        """
        content = self.store.read(_key(name))
        if content is None:
            return None
        try:
            return Named(_parse(content.data), content.info.state)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise DamagedObjectError(f"the object {_key(name)} is damaged") from error

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, sorted."""
        listed = self.store.list(f"{NAMES}{prefix}")
        return [info.key.removeprefix(NAMES).removesuffix(".json") for info in listed]

    def publish(
        self,
        name: str,
        folder: Path,
        files: Iterable[str] | Mapping[str, FileDigest],
        value: Mapping[str, Any] | None = None,
    ) -> Reference:
        """Upload files that the store does not hold, then let a name stand for them.

        Args:
            name: the name for the files; an earlier reference of this name is replaced.
            folder: the folder with the files.
            files: their paths in the folder; with their digests if these are known.
            value: what else belongs to it.

        Raises:
            StorageError: if the store does not take them; the name is then as it was.
        """
        reference = Reference(files=self.uploaded(folder, files), value=dict(value or {}))
        self.store.write(_key(name), _encode(reference))
        return reference

    def replace(self, name: str, reference: Reference, before: Named | None) -> ObjectState:
        """Let a name stand for something else, unless another machine was faster.

        Args:
            name: the name that is to stand for the reference.
            reference: the new reference, whose files are in the store.
            before: what `find` has returned.

        Returns:
            The new state of the name.

        Raises:
            ConflictError: if the name stands for something else by now.
        """
        data = _encode(reference)
        try:
            if before is None:
                return self.store.write(_key(name), data, if_absent=True)
            return self.store.write(_key(name), data, if_match=before.state)
        except ConflictError:
            present = self.store.read(_key(name))
            if present is not None and present.data == data:  # the answer to our write was lost
                return present.info.state
            if present is None and before is not None:
                return self.replace(name, reference, None)  # it was damaged, and is gone
            raise

    def remove(self, name: str) -> None:
        """Forget a name; its contents stay until they are cleaned."""
        self.store.delete(_key(name))

    # -- contents --------------------------------------------------------------------------------

    def uploaded(
        self, folder: Path, files: Iterable[str] | Mapping[str, FileDigest]
    ) -> dict[str, FileDigest]:
        """Upload the files that the store does not hold, and return all digests."""
        if isinstance(files, Mapping):
            digests = dict(files)
        else:
            digests = {path: digest_of(folder / path) for path in files}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda path: self._upload(folder / path, digests[path]), digests))
        return digests

    def fetch(self, reference: Reference, folder: Path) -> None:
        """Write the files of a reference into a folder; those that are there already stay.

        All are looked at, so that each damaged content is deleted, and uploaded by whoever computes
        it again: `uploaded` leaves alone what is there with its size.

        Raises:
            DamagedObjectError: if a content is missing or damaged.
            DataError: if a path leads out of the folder.
            StorageError: if the store does not answer, or the disk is full.
        """

        def damage_of(file: tuple[Path, str, FileDigest]) -> DamagedObjectError | None:
            try:
                self._fetch(*file)
            except DamagedObjectError as error:
                return error
            return None

        files = [
            (safe_join(folder, path, self.uri), path, digest)
            for path, digest in reference.files.items()
        ]
        make_folder(folder)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for damage in list(pool.map(damage_of, files)):
                if damage:
                    raise damage

    def fetch_folder(self, name: str, folder: Path) -> Reference | None:
        """Write what a name stands for as a new folder, complete or not at all.

        Returns:
            None if there is no such name, or if a content is damaged.
        """
        named = self.find(name)
        if named is None:
            return None
        with self.unless_damaged(name), replace_file(folder) as part:
            self.fetch(named.reference, part)
            return named.reference
        return None

    @contextmanager
    def unless_damaged(self, what: str) -> Iterator[None]:
        """End a block in which something is fetched that is damaged, and say that it is not used.

        Args:
            what: what is fetched, such as its name.
        """
        try:
            yield
        except DamagedObjectError as reason:
            self.on_note(f"{what} in {self.uri} is not used: {reason}")

    def _upload(self, file: Path, digest: FileDigest) -> None:
        key = content_key(digest.sha256)
        if digest.sha256 in self._present:
            return
        info = self.store.info(key)
        if info is None or info.bytes != digest.bytes:
            self.store.upload(file, key)
        self._present.add(digest.sha256)

    def _fetch(self, target: Path, path: str, digest: FileDigest) -> None:
        if (
            target.is_file()
            and target.stat().st_size == digest.bytes
            and digest_of(target) == digest
        ):
            return
        key = content_key(digest.sha256)
        with replace_file(target) as temporary:
            if not self.store.download(key, temporary):
                raise DamagedObjectError(f"the object {key} ({path}) is missing")
            if digest_of(temporary) != digest:
                self._damaged(f"the object {key} ({path})", key)
                raise DamagedObjectError(f"the object {key} ({path}) is damaged")
        self._present.add(digest.sha256)

    def _damaged(self, what: str, key: str) -> None:
        self.on_note(f"{what} in {self.uri} does not match its checksum and is not used")
        self._present.discard(key.rpartition("/")[2])
        with suppress(PipelineError):  # of a store that may only be read
            self.store.delete(key)


def content_key(sha256: str) -> str:
    """Return the key of a content."""
    return f"{FILES}{sha256[:2]}/{sha256}"


def _key(name: str) -> str:
    if reason := unsafe_reason(name):
        raise DataError(f"{name!r} is no name for files of a workspace: it {reason}. Correct it.")
    return f"{NAMES}{name}.json"


def _encode(reference: Reference) -> bytes:
    text = reference.model_dump_json()
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"sha256": digest, "reference": text}).encode()


def _parse(data: bytes) -> Reference:
    content = json.loads(data)
    text = content["reference"]
    if hashlib.sha256(text.encode()).hexdigest() != content["sha256"]:
        raise ValueError("the digest of a reference does not match")
    return Reference.model_validate_json(text)


def contents_of(reference: Reference) -> Iterator[str]:
    """Yield the keys of the contents that a reference needs."""
    for digest in reference.files.values():
        yield content_key(digest.sha256)


class SharedFile:
    """A file of a shared workspace, from when it is fetched until it is replaced.

    Args:
        files: the files of the shared workspace.
        name: the name of the file: its path in the workspace.
    """

    def __init__(self, files: SharedFiles, name: str) -> None:
        self._files, self._name = files, name
        self._before: Named | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the store had none when it was fetched: it was lost, or never there."""
        return self._before is None

    def fetch(self, file: Path) -> None:
        """Make a local file that of the store; if there is none, the local file stays.

        Raises:
            DataError: if what the store has is damaged; the local file is then as it was.
        """
        try:
            self._before = self._files.lasting(self._name)
            if self._before is None:
                return
            [digest] = self._before.reference.files.values()
            if file.is_file() and digest_of(file) == digest:
                self._files.uploaded(file.parent, {file.name: digest})  # if it was damaged there
            else:
                with replace_file(file) as part:
                    self._files.fetch(Reference(files={part.name: digest}), part.parent)
        except DamagedObjectError as error:
            raise DataError(
                f"{self._name} in {self._files.uri} cannot be used: {error}. Run once on a machine "
                "whose folder .patchline still has the file, or restore the object from a backup."
            ) from error

    def replace(self, file: Path) -> None:
        """Let the store have the content of a local file.

        Raises:
            ConflictError: if another machine has replaced what was fetched.
            StorageError: if the store does not take it.
        """
        name = self._name.rpartition("/")[2]
        digest = digest_of(file)
        self._files.uploaded(file.parent, {file.name: digest})
        self._files.replace(self._name, Reference(files={name: digest}), self._before)
