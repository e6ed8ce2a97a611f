"""Which workspace this process works with: that of the working directory alone, or a shared one.

`--workspace URI`, then `PATCHLINE_WORKSPACE`, then what the folder `.patchline` remembers. The
folder `.patchline` of a shared workspace is its cache on this machine, and caches no other one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.workspace.address import check_spelling, is_address, parse_address
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.object_store import Address, ObjectStore
from patchline.pipeline.workspace.shared_files import SharedFiles
from patchline.pipeline.workspace.workspace import CACHE_FILE
from patchline.plugin_api import StoreContext

logger = logging.getLogger(__name__)

VARIABLE, FLAG = "PATCHLINE_WORKSPACE", "--workspace"
_RESULTS = ("runs/*/*", "splits/*.parquet")
"""Files of a workspace that cannot be computed again."""

_opened: dict[tuple[str, Path], SharedFiles] = {}
_opening = threading.Lock()
_on_note: Callable[[str], None] = logger.warning


def use(uri: str) -> None:
    """Work with the workspace of an address, in this process and those that it starts.

    Raises:
        ConfigError: if it is no address.
    """
    os.environ[VARIABLE] = str(_address(uri, FLAG))


def tell(on_note: Callable[[str], None]) -> None:
    """Set what is called with a sentence, such as one about a damaged object."""
    global _on_note  # noqa: PLW0603 - a command has one display
    _on_note = on_note


def say(sentence: str) -> None:
    """Pass a sentence on to whoever shows it by then."""
    _on_note(sentence)


def address() -> Address | None:
    """Return the address of the shared workspace; None for that of the working directory.

    Raises:
        ConfigError: if the address is wrong, or the folder `.patchline` has other results.
    """
    given = os.environ.get(VARIABLE, "").strip()
    cached = read_cached_address(WORKSPACE)
    if not given:
        return cached
    wanted = _address(given, VARIABLE)
    if cached is not None and cached != wanted:
        raise ConfigError(
            f"The folder {WORKSPACE} here caches the workspace {cached}, so {wanted} needs another "
            f"working directory. Change to another one, or leave out {FLAG}."
        )
    if cached is None and any(any(WORKSPACE.glob(pattern)) for pattern in _RESULTS):
        raise ConfigError(
            f"The folder {WORKSPACE} here holds runs of its own, which {wanted} does not know. "
            f"Work in an empty folder, or leave out {FLAG}."
        )
    return wanted


def read_cached_address(workspace: Path) -> Address | None:
    """Return the address of the workspace that a folder caches; None if it caches none."""
    cached = _read_cached(workspace)
    return _address(cached.uri, str(workspace / CACHE_FILE)) if cached else None


def read_cached_id(workspace: Path = WORKSPACE) -> str:
    """Return the id of the shared workspace that a folder caches; empty if there is none.

    A copy of a workspace, such as one that was restored from a backup, has the same id.
    """
    cached = _read_cached(workspace)
    return cached.id if cached else ""


class _Cached(FrozenModel):
    """The workspace that a folder caches."""

    uri: str
    id: str = ""


def _read_cached(workspace: Path) -> _Cached | None:
    try:
        return _Cached.from_file(workspace / CACHE_FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{workspace / CACHE_FILE}, which names the workspace that is cached here, cannot be "
            "read. Restore it, or delete the folder, which is a cache."
        ) from error


def is_local() -> bool:
    """Return whether the workspace lies on this machine alone, as far as can be seen.

    A folder (`file://`) may be on a file system that other machines mount, which is not known.
    """
    chosen = address()
    return chosen is None or chosen.scheme == "file"


def find_shared_files() -> SharedFiles | None:
    """Return the files that machines share; None for the workspace of the working directory.

    The first call connects to the store, and lets the folder `.patchline` remember its address.

    Raises:
        ConfigError: if there is no such bucket or folder, or the credentials are wrong.
        StorageError: if the store does not answer.
    """
    chosen = address()
    return open_shared_files(str(chosen), WORKSPACE.resolve()) if chosen else None


def open_shared_files(uri: str, workspace: Path) -> SharedFiles:
    """Return the files that machines share at an address, of which a folder is the cache.

    Raises:
        ConfigError: if there is no such bucket or folder, or the credentials are wrong.
        StorageError: if the store does not answer.
    """
    with _opening:
        if (uri, workspace) not in _opened:
            files = SharedFiles(open_store(_address(uri, VARIABLE)), say)
            files.open()
            if read_cached_id(workspace) != files.id:
                _Cached(uri=uri, id=files.id).to_file(workspace / CACHE_FILE, indent=None)
            _opened[uri, workspace] = files
    return _opened[uri, workspace]


def open_store(chosen: Address, patience_seconds: float | None = None) -> ObjectStore:
    """Return the store of an address.

    Args:
        chosen: the address.
        patience_seconds: how long a request is repeated, by default a minute.

    Raises:
        ConfigError: if it is a folder that does not exist, or there are no credentials.
    """
    plugin = plugin_loader.load_store(chosen.scheme)
    with plugin_loader.plugin_errors("store", chosen.scheme, "failed to build"):
        return plugin.build(plugin.config_class(), StoreContext(chosen, patience_seconds))


def _address(text: str, setting: str) -> Address:
    """Return an address; a path of a folder counts as one."""
    text = text.strip()
    check_spelling(text, setting)
    if is_address(text):
        return parse_address(text, setting)
    return Address("file", "", str(Path(text).expanduser().resolve()))


if hasattr(os, "register_at_fork"):  # a connection does not survive a fork
    os.register_at_fork(after_in_child=_opened.clear)
