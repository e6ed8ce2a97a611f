"""Write a workspace into one archive while runs are going on, and restore it from there.

The databases are copied first, by SQLite's backup, so that each is whole at one moment; the files
that they name were written before. Every file is read once, with its digest; the list of digests is
the last member. An archive holds no secret of a server, no lock, and no image of the user.

A workspace is restored into an empty folder, which it then follows. Nothing in the archive is
trusted: only plain files whose paths belong to a workspace are written, into a new folder beside
the target that is renamed once every digest has been verified.
"""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import IO, BinaryIO

from pydantic import ValidationError

from patchline.pipeline import local_services
from patchline.pipeline.errors import ConfigError, DataError, StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.workspace.files import workspace_identity
from patchline.pipeline.workspace.files.archive_members import MOST_MEMBERS
from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors
from patchline.pipeline.workspace.files.paths import artifact_path, sqlite_path, unsafe_reason
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace.tracking import team_stores
from patchline.pipeline.workspace.tracking.tracking_store import ARTIFACTS, DATABASE

LIST = "workspace-export.json"
"""The last member of an archive: what it holds, with the digest of every other member."""
FORMAT = 1
PREFECT = f"{WORKSPACE}/prefect.db"
DATABASES = (DATABASE, PREFECT)
CACHES = frozenset(
    {
        *("prepared", "scans", "ingestions", "sources", "near_duplicates"),
        *("features", "teacher_predictions"),
    }
)
"""Folders that the next run makes again from the images."""
_OF_PROCESSES = frozenset({"live", "locks", "services"})
"""Folders about running processes; `services` holds the secret of the local servers."""
_LEFT_OUT = re.compile(
    r".*\.(lock|part|log|key)|.*\.db(-wal|-shm|-journal)?|\.building-.*|\.locks|\.artifact\..*"
)
_TOPS = frozenset({DATABASE, ARTIFACTS, str(WORKSPACE)})


class Member(FrozenModel):
    """One file of an archive."""

    bytes: int
    sha256: str


class Contents(FrozenModel):
    """What an archive holds."""

    format: int = FORMAT
    patchline: str
    """The version that wrote it."""
    created: str
    """Time when it was written; ISO 8601, UTC."""
    folder: str
    """The folder that was exported."""
    runs: int
    """Number of runs in the MLflow database."""
    models: int
    """Number of registered models."""
    caches: bool
    """Whether it holds what the next run makes again from the images."""
    outside: int
    """Artifact locations that are not in the folder, and so not in the archive."""
    members: dict[str, Member]
    """All other members of the archive, by path."""


def files(folder: Path, *, caches: bool) -> Iterator[str]:
    """Yield the paths of a workspace's files that belong to its archive, without the databases.

    Args:
        folder: the folder that holds the workspace.
        caches: whether to include what the next run makes again from the images.
    """
    left_out = _OF_PROCESSES if caches else _OF_PROCESSES | CACHES
    for top in (WORKSPACE, Path(ARTIFACTS)):
        for place, folders, names in os.walk(folder / top):
            inside = Path(place).relative_to(folder)
            if inside == WORKSPACE:
                folders[:] = [name for name in folders if name not in left_out]
            folders[:] = sorted(name for name in folders if not _LEFT_OUT.fullmatch(name))
            for name in sorted(names):
                file = folder / inside / name
                artifact = inside.parts[0] == ARTIFACTS
                kept = not _LEFT_OUT.fullmatch(name) or (artifact and name[0] != ".")
                if kept and file.is_file() and not file.is_symlink():
                    yield (inside / name).as_posix()


def member_refusal(path: str) -> str | None:
    """Return why a member of an archive may not become a file; none if it may."""
    if reason := unsafe_reason(path):
        return f"its path {reason}"
    if path.partition("/")[0] not in _TOPS and path != LIST:
        return "it does not belong to a workspace"
    return None


_BUSY_SECONDS = 60.0
_PIECE_BYTES = 1 << 20
_SECRETS = (
    "DELETE FROM configuration WHERE key = 'ENCRYPTION_KEY'",
    "DELETE FROM block_document",
    "DELETE FROM automation WHERE tags LIKE '%patchline.notification%'",
)
"""Webhook addresses, encrypted, and the key that older databases keep beside them; and the
notifications, which would post to no address."""
Progress = Callable[[str, int, int], None]


def export(folder: Path, target: Path, progress: Progress, *, caches: bool = False) -> Contents:
    """Write the workspace of a folder into an archive.

    Args:
        folder: the folder that holds `.patchline` and `mlflow.db`.
        target: the archive; replaced as a whole once it is complete.
        progress: called with a label, the bytes that are written, and all bytes.
        caches: whether to include what the next run makes again from the images.

    Raises:
        ConfigError: if there is no workspace, or the archive exists or would lie in what it holds.
        StorageError: if a file cannot be read or the archive cannot be written.
    """
    _check(folder, target)
    with storage_errors(target), tempfile.TemporaryDirectory(prefix="patchline-export-") as scratch:
        databases = _copy_databases(folder, Path(scratch))
        runs, models, outside = _counts(databases.get(DATABASE), folder)
        sources = {**databases, **{path: folder / path for path in files(folder, caches=caches)}}
        with replace_file(target) as temporary:
            temporary.touch(mode=0o600)
            members = _write(temporary, sources, progress)
            contents = Contents(
                patchline=metadata.version("patchline"),
                created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                folder=str(folder),
                runs=runs,
                models=models,
                caches=caches,
                outside=outside,
                members=members,
            )
            with tarfile.open(temporary, "a", format=tarfile.PAX_FORMAT) as archive:
                _add(
                    archive,
                    LIST,
                    io.BytesIO(text := contents.model_dump_json().encode()),
                    len(text),
                )
    return contents


def _check(folder: Path, target: Path) -> None:
    if not (folder / WORKSPACE).is_dir() and not (folder / DATABASE).is_file():
        raise ConfigError(
            f"The folder {folder} holds no workspace: no {WORKSPACE} and no {DATABASE}. Run the "
            "command in the folder where `patchline run` was started."
        )
    if target.exists():
        raise ConfigError(f"{target} exists. Choose another name for the archive, or delete it.")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"The folder of {target} does not exist. Create it first.")
    inside = [folder / WORKSPACE, folder / "mlruns"]
    if any(target.resolve().is_relative_to(each.resolve()) for each in inside):
        raise ConfigError(f"{target} would lie inside what it archives. Choose another folder.")


def _copy_databases(folder: Path, scratch: Path) -> dict[str, Path]:
    """Return copies of the databases, each as it was at one moment, without secrets."""
    copies = {}
    for name in DATABASES:
        if (folder / name).is_file():
            copies[name] = scratch / Path(name).name
            copy_database(folder / name, copies[name])
    if PREFECT in copies:
        with closing(sqlite3.connect(copies[PREFECT])) as store:
            tables = {row[0] for row in store.execute("SELECT name FROM sqlite_master")}
            for statement in _SECRETS:
                if statement.split()[2] in tables:
                    store.execute(statement)
            store.commit()
            store.execute("VACUUM")  # what was deleted must not stay in free pages
    return copies


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite file that other processes may be writing to, as it is at one moment.

    Raises:
        StorageError: if it is damaged, or stays locked.
    """
    try:
        if os.access(source.parent, os.W_OK):
            _back_up(source, target)
        else:  # SQLite cannot replay a log where it may not write
            for suffix in ("", "-wal", "-journal"):
                part = source.with_name(source.name + suffix)
                if part.exists():
                    shutil.copyfile(part, target.with_name(f"whole-{target.name}{suffix}"))
            _back_up(target.with_name(f"whole-{target.name}"), target)
    except sqlite3.Error as error:
        raise StorageError(
            f"The database {source} cannot be copied ({error}). If it is damaged, move it away; "
            "if it is busy, try again."
        ) from error


def _back_up(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(source.as_uri(), uri=True)) as opened,
        closing(sqlite3.connect(target)) as copy,
    ):
        opened.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
        opened.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")


def _counts(database: Path | None, folder: Path) -> tuple[int, int, int]:
    if database is None:
        return 0, 0, 0
    with closing(sqlite3.connect(database)) as store:
        [runs] = store.execute("SELECT count(*) FROM runs").fetchone()
        [models] = store.execute("SELECT count(*) FROM registered_models").fetchone()
        rows = store.execute("SELECT artifact_uri FROM runs").fetchall()
    places = [artifact_path(str(row[0])) for row in rows]
    identity = workspace_identity.read(folder / WORKSPACE)
    homes = [folder, *([Path(identity.folder)] if identity else [])]  # it may be followed later
    outside = [each for each in places if each is None or not any(map(each.is_relative_to, homes))]
    return int(runs), int(models), len(outside)


def _write(archive_file: Path, sources: dict[str, Path], progress: Progress) -> dict[str, Member]:
    sizes = {path: source.stat().st_size for path, source in sources.items() if source.exists()}
    total, done = sum(sizes.values()), 0
    members = {}
    with tarfile.open(archive_file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path, expected in sizes.items():
            try:
                opened = sources[path].open("rb")
            except FileNotFoundError:
                continue  # a run that is going on has replaced or removed it
            with opened:
                size = opened.seek(0, 2)
                opened.seek(0)
                digest = _add(archive, path, opened, size)
            members[path] = Member(bytes=size, sha256=digest)
            done += expected
            progress("Exporting", done, total)
    return members


def _add(archive: tarfile.TarFile, path: str, opened: BinaryIO, size: int) -> str:
    """Add the first `size` bytes of a file; a log that grows meanwhile stays whole lines longer."""
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = size, 0o600, 0
    reader = _Hashed(opened)
    archive.addfile(info, reader)
    return reader.digest.hexdigest()


class _Hashed:
    """A file that is read once, and the digest of what was read."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._opened.read(size)
        self.digest.update(piece)
        return piece


def store_elsewhere(folder: Path) -> str | None:
    """Return the address of the store of a folder's runs, without credentials.

    Args:
        folder: the folder that holds `.patchline` and maybe `mlflow.db`.

    Returns:
        None if the store is the folder's own `mlflow.db`.

    Raises:
        ConfigError: if the file that remembers a team's stores is damaged.
    """
    services = local_services.find_running(folder)
    given = os.environ.get("MLFLOW_TRACKING_URI") or (services.mlflow_url if services else "")
    own = services is not None and "mlflow" in services.own and given == services.mlflow_url
    if own or not given:  # the servers of this folder, whether they run or not
        return team_stores.recall(folder).database
    database = sqlite_path(given)
    if database is not None:
        is_here = database.resolve() == (folder / DATABASE).resolve()
        return None if is_here else redact_text(given)
    return redact_text(given)


# -- restoring ---------------------------------------------------------------------------------


_MOST_LIST_BYTES = 1 << 30
_IMPOSSIBLE = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ)
"""What an operating system says about a path that cannot be a file, whatever the disk is like."""


def restore(archive_file: Path, folder: Path, progress: Progress) -> Contents:
    """Unpack an archive into a folder that is empty or does not exist.

    Args:
        archive_file: an archive that `patchline workspace export` has written.
        folder: the folder that becomes the workspace; its records still name the old folder.
        progress: called with a label, the bytes that were read, and all bytes.

    Raises:
        ConfigError: if the folder is not empty, or a newer Patchline wrote the archive.
        DataError: if the archive is damaged or holds something else than a workspace.
        StorageError: if the disk is full or read-only.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is not an empty folder. A workspace is restored into one that is empty or "
            "does not exist; name another."
        )
    with storage_errors(folder):
        make_folder(folder.absolute().parent)
        unpacked = (
            folder.absolute().parent / f".{folder.name or 'workspace'}.{uuid.uuid4().hex[:8]}"
        )
        unpacked.mkdir(mode=0o700)
        try:
            contents = _unpack(archive_file, unpacked, progress)
            if f"{WORKSPACE}/{workspace_identity.FILE}" not in contents.members:
                (unpacked / WORKSPACE / workspace_identity.FILE).unlink(missing_ok=True)
            _into_place(unpacked, folder)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    return contents


def _into_place(unpacked: Path, folder: Path) -> None:
    """Move the files into the folder, which may be the working directory of this process."""
    make_folder(folder)
    for each in sorted(unpacked.iterdir(), reverse=True):  # the database, which shows it, last
        each.rename(folder / each.name)


def _unpack(archive_file: Path, target: Path, progress: Progress) -> Contents:
    members: dict[str, Member] = {}
    listed = b""
    try:
        size = archive_file.stat().st_size
        archive_file.open("rb").close()
    except OSError as error:
        raise ConfigError(
            f"The archive {archive_file} cannot be read ({error.strerror}). Check the path and its "
            "permissions."
        ) from error
    try:
        with tarfile.open(archive_file, "r:") as archive:
            for info in archive:
                _check_member(archive_file, info, members, size)
                opened = archive.extractfile(info)
                if opened is None:
                    raise _make_damage_error(archive_file, f"{info.name} is not a file")
                if info.name == LIST:
                    listed = opened.read(_MOST_LIST_BYTES)
                    continue
                members[info.name] = _write_member(archive_file, info.name, opened, target)
                progress("Restoring", min(info.offset_data + info.size, size), size)
    except (tarfile.TarError, EOFError) as error:
        raise _make_damage_error(archive_file, str(error)) from error
    return _verify(archive_file, listed, members)


def _check_member(
    archive_file: Path, info: tarfile.TarInfo, members: dict[str, Member], archive_bytes: int
) -> None:
    """Refuse a member that is no plain file of a workspace, or would unpack to more than it is."""
    reason = member_refusal(info.name)
    if not info.isreg() or info.issparse():
        reason = "it is not a plain file"
    elif info.name in members:
        reason = "it is there twice"
    elif info.offset_data + info.size > archive_bytes or len(members) > MOST_MEMBERS:
        reason = "the archive is cut off or too large"
    if reason:
        raise _make_damage_error(archive_file, f"{info.name!r}: {reason}")


def _write_member(archive_file: Path, name: str, opened: IO[bytes], folder: Path) -> Member:
    """Write a member.

    Raises:
        DataError: if its path cannot be a file here: another member is its folder, or is in it.
    """
    try:
        return _write_file(opened, folder / name)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        raise _make_damage_error(archive_file, f"{name!r}: {os.strerror(error.errno)}") from error


def _write_file(opened: IO[bytes], target: Path) -> Member:
    make_folder(target.parent)
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
            out.write(piece)
            size += len(piece)
    return Member(bytes=size, sha256=digest.hexdigest())


def _verify(archive_file: Path, listed: bytes, members: dict[str, Member]) -> Contents:
    if not listed:
        raise _make_damage_error(archive_file, f"it has no {LIST}")
    try:
        contents = Contents.model_validate_json(listed)
    except ValidationError as error:
        raise _make_damage_error(archive_file, f"its {LIST} cannot be read") from error
    if contents.format > FORMAT:
        raise ConfigError(
            f"{archive_file} was written by the newer Patchline {contents.patchline}. Install "
            "that version to import it."
        )
    missing = sorted(contents.members.keys() - members.keys())
    added = sorted(members.keys() - contents.members.keys())
    changed = [path for path, member in contents.members.items() if members.get(path) != member]
    for paths, words in (
        (missing, "is missing"),
        (added, "is not listed"),
        (changed, "is damaged"),
    ):
        if paths:
            more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
            raise _make_damage_error(archive_file, f"{paths[0]} {words}{more}")
    return contents


def _make_damage_error(archive_file: Path, reason: str) -> DataError:
    return DataError(
        f"{archive_file} cannot be restored ({reason}). Nothing was written. Copy the archive "
        "again, or use another one made by `patchline workspace export`."
    )
