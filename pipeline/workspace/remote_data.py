"""Data on an object store, such as `data.path s3://bucket/photos`, as files on this machine.

What a path names is kept in the workspace's folder `sources/objects/`, laid out as in the bucket.
So whatever reads a folder, an archive, a table or shards reads them there, and the paths in a table
lead to the images beside it. An object is downloaded once, and again only if its ETag or its size
has changed; what is no longer in the bucket is removed here, too.

Of a zip or an uncompressed tar, there is a placeholder instead where the caller opens it by
`open_archive`: it is read by ranges (`remote_ranges`).

For each object, the index of a folder holds ETag and size, then size and time of the local file. It
is written at the end of a download, and a journal beside it as each object arrives, so a process
that is killed loses nothing of what it has downloaded.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from patchline.pipeline.errors import DataError, StorageError
from patchline.pipeline.workspace import cache, chosen
from patchline.pipeline.workspace.address import (
    check_spelling,
    is_known,
    is_of_store,
    of_path,
    parse_address,
)
from patchline.pipeline.workspace.files.atomic_files import replace_file, storage_errors, write_text
from patchline.pipeline.workspace.files.data_kinds import DataKind, data_kind
from patchline.pipeline.workspace.files.data_names import TAR_SUFFIXES
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.paths import safe_join
from patchline.pipeline.workspace.files.placeholders import (
    FOLDER,
    PARTS_FOLDER,
    placeholder,
    write_placeholder,
)
from patchline.pipeline.workspace.files.workspace_folder import make_folder, place
from patchline.pipeline.workspace.object_store import Address, ObjectInfo, ObjectStore

SETTING = "data.path"
_CELL = "The table's image"
_BUCKET, _MARKS = re.compile(r"\s*[^:]+://[^/?#]*/"), re.compile("[?#]")
"""What ends the path of an address elsewhere; a key may hold them."""
_LOCAL_FILE = re.compile("file://(localhost)?/", re.IGNORECASE)
_AT_ONCE = 16
_SAME_LISTING_SECONDS = 60.0
"""How long a listing is used again, so that one command lists a bucket once."""
_STATES_PATIENCE_SECONDS = 5.0
_WORTH_A_NOTE_BYTES = 1 << 24
_MOST_NAMES = 1000
_SKELETON_DEPTH = 2
_RANGED_SUFFIXES = (".zip", ".tar")
"""Suffixes of archives that say where their members are."""

_listings: dict[str, tuple[float, list[ObjectInfo]]] = {}


class KeptState(NamedTuple):
    """The state of an object of which this machine has all or some parts."""

    bytes: int
    e_tag: str


def local_path(path: str, *, whole: bool = True) -> str:
    """Return where the data of a path lies on this machine, after downloading what is missing.

    Args:
        path: an address, or any other path, which is returned as it is.
        whole: whether an archive is downloaded, too. Otherwise, a placeholder may stand for it,
            which `open_archive` and `OpenFile` read by ranges, and nothing else can.

    Raises:
        ConfigError: if the address or the credentials are wrong.
        DataError: if there is nothing.
        StorageError: if the store does not answer, or the disk is full.
    """
    address = _find_address(path)
    if isinstance(address, str):
        return address
    objects = _list_objects(address)
    folder = _folder_of(address)
    _mark_used(address)
    if _is_object(address, objects):
        if not whole and _is_ranged(address.prefix):
            stand_in({folder: KeptState(objects[0].bytes, objects[0].e_tag)})
        else:
            _download(_parent(address), folder.parent, objects, removes=False)
        return str(folder)
    _download(address, folder, objects, removes=True)
    return str(folder)


def _find_address(path: str) -> str | Address:
    """Return the address that a path is; of any other, and of a folder's, the path itself."""
    if not is_of_store(path.strip()):
        check_spelling(path, SETTING)
        return path
    address = parse_address(path, SETTING)
    return address.prefix if address.scheme == "file" else address


def local_image(path: Path) -> Path:
    """Return where the images of a path lie on this machine, after downloading what is missing.

    Args:
        path: the path of a file, a folder or an archive; also an address, as `pathlib` changes it.

    Raises:
        ConfigError: if the address or the credentials are wrong.
        DataError: if there is nothing.
        StorageError: if the store does not answer, or the disk is full.
    """
    address = of_path(path)
    return Path(local_path(address, whole=False)) if address else path


def format_path(path: str) -> str:
    """Return the address of what was downloaded; any other path as it is."""
    top = f"{place() / FOLDER}{os.sep}"
    if not path.startswith(top):
        return path
    scheme, _, rest = path.removeprefix(top).replace(os.sep, "/").partition("/")
    return f"{scheme}://{rest}"


def e_tags(root: Path) -> dict[str, str] | None:
    """Return ETag and size of each object, by its path, whose file is still as it was downloaded.

    Of a file that was downloaded again for another address, or was changed here, nothing is known.

    Args:
        root: a local folder; or an archive, or a folder in it: of that, the only entry.

    Returns:
        None if the root was not downloaded by `local_path`.
    """
    root = archive_or_folder(root)
    folder = root if root.is_dir() else root.parent
    index = _index_of(root)
    if index is None:
        return None
    names = index if root.is_dir() else [root.name]
    known = {
        name: " ".join(index[name].split()[:2])
        for name in names
        if name in index and index[name].endswith(f" {file_state(f'{folder}/{name}')}")
    }
    return known if known or root.is_dir() else None


def forget(file: Path) -> bool:
    """Remove a downloaded file that is not what it was, so that it is downloaded again.

    Returns:
        Whether it was downloaded; another file stays.
    """
    if not file.is_relative_to(place() / FOLDER) or not file.is_file():
        return False
    with storage_errors(file):
        file.unlink(missing_ok=True)
    return True


def is_downloaded(root: Path) -> bool:
    """Return whether a folder, an archive, or a folder in one was downloaded by `local_path`."""
    return _index_of(archive_or_folder(root)) is not None


def read_kept_states(files: Iterable[Path]) -> dict[Path, KeptState]:
    """Return the state of each object whose file is as it was downloaded, or stands for it.

    Args:
        files: the files of objects, with real paths; for others, nothing is returned.
    """
    top, indexes = place() / FOLDER, dict[str, dict[str, str]]()
    states = ((file, _read_kept_state(file, top, indexes)) for file in files)
    return {file: state for file, state in states if state}


def _read_kept_state(file: Path, top: Path, indexes: dict[str, dict[str, str]]) -> KeptState | None:
    """Return the state of an object; the indexes of its folders, up to its bucket, are kept."""
    text, prefix = file.as_posix(), f"{top.as_posix()}/"  # paths of many shards take their time
    inside = text.removeprefix(prefix).split("/") if text.startswith(prefix) else []
    if len(inside) > _SKELETON_DEPTH and (ranged := placeholder(file)):
        return KeptState(ranged.bytes, ranged.e_tag)
    end = f" {file_state(text)}"
    for depth in range(len(inside) - 1, _SKELETON_DEPTH - 1, -1):
        folder = "/".join(inside[:depth])
        if folder not in indexes:
            indexes[folder] = read_index(top / folder) or {}
        state = indexes[folder].get("/".join(inside[depth:]), "")
        if state.endswith(end):
            e_tag, size = state.split()[:2]
            return KeptState(int(size), e_tag)
    return None


def stand_in(objects: Mapping[Path, KeptState]) -> None:
    """Let placeholders stand for objects; one that is here in full and in that state stays.

    Whoever reads one that has changed since gets an error.

    Args:
        objects: the state of each object, by the file where it would be downloaded.
    """
    by_folder: dict[Path, list[Path]] = {}
    for file in objects:
        by_folder.setdefault(file.parent, []).append(file)
    for folder, files in by_folder.items():
        scheme, bucket = (*(_below_objects(folder) or ()), "", "")[:_SKELETON_DEPTH]
        _mark_used(Address(scheme, bucket, ""))
        with open_index(folder) as index:
            for file in files:
                state = objects[file]
                if index.get(file.name) != _state(state, file):
                    write_placeholder(file, state.bytes, state.e_tag)
                    index[file.name] = _state(state, file)


def archive_or_folder(root: Path) -> Path:
    """Return the archive that a root is a folder in; any other root as it is."""
    return next((each for each in (root, *root.parents) if each.is_file()), root)


def local_files(base: Path, values: Sequence[str]) -> dict[str, str]:
    """Return the local files of the addresses among the paths in a table, downloaded if necessary.

    Relative paths are looked up beside the table if that lies on an object store itself. The file
    of an object that does not exist does not exist either. A key is what is written; it is decoded,
    once, only if there is no such object.

    Args:
        base: the local folder that relative paths start from.
        values: paths and addresses.
    """
    files: dict[str, str] = {}
    by_bucket: dict[tuple[str, str], list[tuple[str, str]]] = {}
    start = _below_objects(base)
    for value in dict.fromkeys(values):
        if is_of_store(value):
            if _LOCAL_FILE.match(value):
                continue  # whoever reads files on this machine understands it
            top = _BUCKET.match(value)
            key = value[top.end() :] if top else ""
            address = parse_address(f"{top[0]}{_MARKS.sub('_', key)}" if top else value, _CELL)
            place_of = (address.scheme, address.bucket)
            by_bucket.setdefault(place_of, []).append((value, key.strip().strip("/")))
        elif start is not None and value.strip() and not PurePosixPath(value).is_absolute():
            joined = os.path.normpath("/".join((*start, value.strip().replace("\\", "/"))))
            scheme, bucket, key = (*joined.split("/", 2), "", "")[:3]
            if key and is_known(scheme) and (scheme, bucket)[: len(start)] == start[:2]:
                by_bucket.setdefault((scheme, bucket), []).append((value, key))
    for (scheme, bucket), named in by_bucket.items():
        whole = Address(scheme, bucket, "")
        folder = _folder_of(whole)
        cache.mark_used(folder)
        there = _present(whole, folder, [key for _, key in named])
        decoded = {key: unquote(key) for _, key in named if key not in there and "%" in key}
        there |= _present(whole, folder, decoded.values()) if decoded else set()
        for value, key in named:
            if key not in there and is_of_store(value):
                parse_address(value, _CELL)
            use = decoded.get(key, "")
            files[value] = str(folder / (use if use in there else key))
    return files


def is_above_buckets(root: Path) -> bool:
    """Return whether a root is the folder in which objects of several buckets were downloaded."""
    start = _below_objects(root)
    return start is not None and len(start) < _SKELETON_DEPTH


def states(path: str) -> dict[str, str]:
    """Return what tells one state of each object below an address from another, without its cache.

    Raises:
        ConfigError: if the address or the credentials are wrong.
        StorageError: if the store does not answer soon.
    """
    address = parse_address(path, SETTING)
    store = chosen.open_store(address, _STATES_PATIENCE_SECONDS)
    return {each.key: f"{each.bytes} {each.e_tag}" for each in _files(store.list(""))}


def kind(path: str) -> DataKind:
    """Return what kind of data a path holds, by the names in the bucket as far as that suffices.

    Raises:
        ConfigError: if the address or the credentials are wrong.
        DataError: if there is nothing.
        StorageError: if the store does not answer.
    """
    address = _find_address(path)
    if isinstance(address, str):
        return data_kind(address)
    objects = _list_objects(address)
    if _is_object(address, objects):
        if address.prefix.lower().endswith((*TAR_SUFFIXES, ".json")):
            return data_kind(local_path(path, whole=False))
        return data_kind(f"/nowhere/{PurePosixPath(address.prefix).name}")
    with tempfile.TemporaryDirectory(prefix="patchline-") as skeleton:
        top = Path(skeleton) / "data"
        _write_skeleton(top, address, objects)
        return data_kind(str(top))


def _write_skeleton(top: Path, address: Address, objects: Sequence[ObjectInfo]) -> None:
    """Write a folder that looks like the data: its names, empty, and the first tar file in full."""
    top.mkdir()
    tars = [each for each in objects if each.key.lower().endswith(TAR_SUFFIXES)]
    tars = [each for each in tars if each.key.count("/") < _SKELETON_DEPTH]
    first = min(tars, key=lambda each: (each.key.count("/"), each.key), default=None)
    seen = set[tuple[str, str]]()
    for each in objects:
        parts = PurePosixPath(each.key).parts
        if not each.bytes and "." not in parts[-1]:
            continue  # it may stand for an empty folder
        kind_of = (str(PurePosixPath(*parts[:-1])), PurePosixPath(each.key).suffix)
        if (len(parts) > 1 and kind_of in seen) or len(seen) > _MOST_NAMES:
            continue
        seen.add(kind_of)
        file = safe_join(top, "/".join(parts[:_SKELETON_DEPTH]), address)
        make_folder(file.parent)
        if len(parts) > _SKELETON_DEPTH:
            file.mkdir(exist_ok=True)
        elif not file.exists():
            file.touch()
    if first is not None:
        _download(address, _folder_of(address), [first], removes=False)
        target = top.joinpath(*PurePosixPath(first.key).parts)
        target.unlink(missing_ok=True)
        make_folder(target.parent)
        target.symlink_to(_folder_of(address) / first.key)


def _list_objects(address: Address) -> list[ObjectInfo]:
    """Return the objects of an address: itself, with its name, or those below it.

    Raises:
        DataError: if there are none, or one is a folder, too.
    """
    known = _listings.get(str(address))
    if known and time.monotonic() - known[0] < _SAME_LISTING_SECONDS:
        return known[1]
    info = None
    if address.prefix:
        info = chosen.open_store(_parent(address)).info(PurePosixPath(address.prefix).name)
    objects = [info] if info and info.bytes else []
    if not objects:
        objects = _files(chosen.open_store(address).list("")) or ([info] if info else [])
    if not objects:
        raise DataError(f"There is nothing at {address}. Check the address.")
    _check_folders(address, objects)
    _listings[str(address)] = time.monotonic(), objects
    return objects


def _files(listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Return the objects that can be files: consoles write empty ones that stand for folders."""
    objects = [each for each in listed if _is_file(each)]
    folders = _folders_of(objects)
    return [each for each in objects if each.bytes or each.key not in folders]


def _folders_of(objects: Iterable[ObjectInfo]) -> set[str]:
    """Return the folders that the keys of objects are in, and those that these are in."""
    folders = set[str]()
    for each in objects:
        folder = each.key.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _check_folders(place_of: object, objects: Sequence[ObjectInfo]) -> None:
    """Make sure that no object is a folder, too.

    Raises:
        DataError: if one is.
    """
    folders = _folders_of(objects)
    for each in objects:
        if each.key in folders:
            raise _no_file(place_of, each)


def _no_file(place_of: object, info: ObjectInfo) -> DataError:
    return DataError(
        f"{place_of}/{info.key} is an object and a folder, which no disk can hold. Rename one of "
        "them."
    )


def _is_file(info: ObjectInfo) -> bool:
    if any(part in ("", ".", "..") for part in info.key.split("/")):
        return False
    return info.bytes > 0 or not info.key.endswith("_$folder$")


def _is_ranged(key: str) -> bool:
    return key.lower().endswith(_RANGED_SUFFIXES)


def _is_object(address: Address, objects: Sequence[ObjectInfo]) -> bool:
    """Return whether an address names one object, and no folder."""
    return len(objects) == 1 and objects[0].key == PurePosixPath(address.prefix).name


def _parent(address: Address) -> Address:
    parent = str(PurePosixPath(address.prefix).parent)
    return address._replace(prefix="" if parent == "." else parent)


def _folder_of(address: Address) -> Path:
    return place() / FOLDER / address.scheme / address.bucket / address.prefix


def _download(
    address: Address, folder: Path, objects: Sequence[ObjectInfo], *, removes: bool
) -> None:
    """Let a folder hold the current objects.

    Args:
        address: the address that the objects' keys are relative to.
        folder: the local folder for the address.
        objects: the objects that the folder is to hold.
        removes: whether everything else in the folder is removed.
    """
    with open_index(folder) as index:
        stale = [each for each in objects if not _is_whole(folder, each, index)]
        store = chosen.open_store(address) if stale else None
        size = sum(each.bytes for each in stale)
        if size >= _WORTH_A_NOTE_BYTES:
            chosen.say(
                f"downloading {len(stale):,} of {len(objects):,} files ({size / 1e6:,.0f} MB) of "
                f"{address} into {folder}"
            )
        if store is not None:
            _fetch(store, folder, stale, index)
        if removes:
            _remove_others(folder, {each.key for each in objects}, index)


def _mark_used(address: Address) -> None:
    for top in (FOLDER, PARTS_FOLDER):
        cache.mark_used(place() / top / address.scheme / address.bucket)


def _present(whole: Address, folder: Path, keys: Iterable[str]) -> set[str]:
    """Download those objects of a bucket that exist, by their keys, and return these."""
    store = chosen.open_store(whole)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        infos = [info for info in pool.map(store.info, dict.fromkeys(keys)) if info]
    with open_index(folder) as index:
        stale = [each for each in infos if not _is_whole(folder, each, index)]
        _fetch(store, folder, stale, index)
    return {each.key for each in infos}


def _fetch(
    store: ObjectStore, folder: Path, objects: Sequence[ObjectInfo], index: RemoteIndex
) -> None:
    """Download objects; the index knows each that is complete, whatever happens to the others."""
    _check_folders(store.uri, objects)

    def fetch(info: ObjectInfo) -> None:
        target = safe_join(folder, info.key, store.uri)
        if not info.bytes and store.info(info.key) is None:
            return  # it stands for an empty folder: the slash at the end of its key is not listed
        if target.is_dir():
            raise _no_file(store.uri, info)
        with replace_file(target) as temporary:
            there = store.download(info.key, temporary)
            if not there or temporary.stat().st_size != info.bytes:
                raise StorageError(
                    f"{store.uri}/{info.key} changed while it was downloaded. Run again."
                )
        index.note(info.key, _state(info, target))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(fetch, each) for each in objects]:
            done.result()


def _is_whole(folder: Path, info: ObjectInfo, index: dict[str, str]) -> bool:
    file = folder / info.key
    is_current = index.get(info.key) == _state(info, file)
    return is_current and not (_is_ranged(info.key) and placeholder(file) is not None)


def _state(info: ObjectInfo | KeptState, file: Path) -> str:
    """Return what identifies an object and its local file; the second may have been changed."""
    state = file_state(os.fspath(file))
    return f"{info.e_tag} {info.bytes} {state}" if state else ""


def _remove_others(folder: Path, keys: set[str], index: dict[str, str]) -> None:
    """Remove the files of a folder that are no objects any more."""
    with storage_errors(folder):
        for file in [each for each in folder.rglob("*") if not each.is_dir()]:
            if file.relative_to(folder).as_posix() not in keys:
                file.unlink()
        for below in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
            if not any(below.iterdir()):
                below.rmdir()
    for key in index.keys() - keys:
        del index[key]


def _below_objects(root: Path) -> tuple[str, ...] | None:
    """Return the scheme, the bucket and the key of a downloaded root, as far as it has them."""
    top, root = (place() / FOLDER).resolve(), root.resolve()
    return root.relative_to(top).parts if root.is_relative_to(top) else None


def _index_of(root: Path) -> dict[str, str] | None:
    """Return what is known about the files of a folder, or those beside an archive."""
    top = place() / FOLDER
    if not root.is_relative_to(top) or len(root.relative_to(top).parts) < _SKELETON_DEPTH:
        return None
    return read_index(root if root.is_dir() else root.parent)


# -- what is known about files that were downloaded ----------------------------------------------


_INDEXES = ".indexes"


class RemoteIndex(dict[str, str]):
    """The index of a folder: the state of each object by its key.

    Args:
        file: the file of the index; whoever changes it holds its lock.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(_read(file) or {})
        self._file, self._journal = file, AppendLog(file.with_suffix(".journal"))
        self._saved = dict(self)
        self._lock = threading.Lock()
        self.update(self._journal.new_values())
        self.save()

    def note(self, key: str, state: str) -> None:
        """Record an object that is complete; several threads may do so at the same time.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        with self._lock:
            self[key] = state
            self._journal.append([key, state])

    def save(self) -> None:
        """Write the index if it has changed, and remove the journal.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        if self != self._saved:
            write_text(self._file, json.dumps(self))
            self._saved = dict(self)
        if self._journal.file.exists():  # nothing is removed from a read-only disk
            with storage_errors(self._journal.file):
                self._journal.file.unlink(missing_ok=True)


@contextmanager
def open_index(folder: Path) -> Iterator[RemoteIndex]:
    """Yield the index of a folder, under a lock, and save it at the end."""
    file = _index_file(folder)
    make_folder(folder)
    make_folder(file.parent)
    with hold_lock(file.with_suffix(".lock")):
        index = RemoteIndex(file)
        try:
            yield index
        finally:
            index.save()


def read_index(folder: Path) -> dict[str, str] | None:
    """Return the index of a folder; None if it has none that can be read."""
    return _read(_index_file(folder))


def file_state(file: str) -> str:
    """Return size and time of a local file; nothing if there is none."""
    try:
        status = os.stat(file)  # noqa: PTH116 - a Path for each of a million files takes its time
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _index_file(folder: Path) -> Path:
    top = place() / FOLDER
    return top / _INDEXES / f"{folder.relative_to(top).as_posix().replace('/', '%')}.json"


def _read(file: Path) -> dict[str, str] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): str(state) for key, state in content.items()}
    except (OSError, ValueError, AttributeError):
        return None
