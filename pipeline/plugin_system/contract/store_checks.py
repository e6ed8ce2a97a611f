"""Conformance checks of a store: what was written is read, and conditions of a write hold."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from patchline.pipeline.plugin_system.contract.checks import Check, CheckedPlugin, checks, require
from patchline.plugin_api import Address, ConflictError, ObjectState, ObjectStore, StoreContext

_LARGE = bytes(range(256)) * 24_000
"""6 MB, which a store may send in parts."""
_LONGEST_DELAY = dt.timedelta(minutes=5)
"""Between the dates that a store gives what is written at one time."""


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of a store, each below the address of its example."""
    return checks(
        subject, reads_what_was_written, transfers_files, lists_by_prefix, keeps_conditions
    )


def reads_what_was_written(subject: CheckedPlugin) -> None:
    """An object is read as a whole and in parts after it was written, and gone after deletion."""
    with _store(subject) as store:
        require(
            store.read("a/b") is None, "read returns an object that does not exist. Return None."
        )
        require(store.info("a/b") is None, "info knows an object that does not exist. Return None.")
        now = store.now()
        store.write("a/b", b"first")
        content = store.read("a/b")
        require(
            content is not None and bytes(content.data) == b"first",
            f"write wrote b'first'; read returns {content!r}.",
        )
        require(
            content is not None and content.info == store.info("a/b"),
            "read and info describe the same object differently.",
        )
        require(
            content is not None and abs(content.info.modified - now) < _LONGEST_DELAY,
            "now is not the time by the clock that dates the objects.",
        )
        for start, stop, expected in ((1, 3, b"ir"), (3, 99, b"st")):
            part = store.read_range("a/b", start, stop)
            require(
                part is not None and bytes(part) == expected,
                f"read_range({start}, {stop}) of b'first' returns {part!r}.",
            )
        require(
            store.read_range("a/none", 0, 1) is None,
            "read_range returns bytes of an object that does not exist. Return None.",
        )
        _check_refused("read_range", lambda: store.read_range("a/b", 0, 1, if_match="another"))
        for _ in range(2):
            store.delete("a/b")
        require(store.read("a/b") is None, "An object is there after it was deleted.")


def transfers_files(subject: CheckedPlugin) -> None:
    """A file of several megabytes is uploaded and downloaded unchanged."""
    with _store(subject) as store, tempfile.TemporaryDirectory() as folder:
        sent, received = Path(folder) / "sent", Path(folder) / "received"
        sent.write_bytes(_LARGE)
        store.upload(sent, "files/large")
        require(store.download("files/large", received), "download finds no object after upload.")
        require(received.read_bytes() == _LARGE, "A file has changed between upload and download.")
        require(
            not store.download("files/none", Path(folder) / "none"),
            "download returns True for an object that does not exist.",
        )


def lists_by_prefix(subject: CheckedPlugin) -> None:
    """The list holds the objects whose keys begin with a prefix, in their order."""
    with _store(subject) as store:
        for key in ("list/b/2", "list/a", "list/b/1", "other"):
            store.write(key, key.encode())
        for prefix, expected in (
            ("list/", ["list/a", "list/b/1", "list/b/2"]),
            ("list/b", ["list/b/1", "list/b/2"]),
            ("nothing", []),
        ):
            found = list(store.list(prefix))
            require(
                [each.key for each in found] == expected,
                f"list({prefix!r}) yields {[each.key for each in found]}; expected {expected}.",
            )
            require(
                all(each.bytes == len(each.key) for each in found),
                "list yields wrong sizes: `bytes` is the size of the object.",
            )


def keeps_conditions(subject: CheckedPlugin) -> None:
    """A write is refused if there is an object already, or not the one that was read."""
    with _store(subject) as store:
        first = store.write("split", b"1", if_absent=True)
        _check_refused("if_absent", lambda: store.write("split", b"2", if_absent=True))
        second = store.write("split", b"2", if_match=first)
        _check_refused("if_match", lambda: store.write("split", b"3", if_match=first))
        _check_refused("if_match", lambda: store.write("gone", b"3", if_match=first))
        content = store.read("split")
        require(
            content is not None and (bytes(content.data), content.info.state) == (b"2", second),
            f"After b'2' was written, and other writes were refused, read returns {content!r}.",
        )


def _check_refused(
    condition: str, action: Callable[[], ObjectState | bytes | memoryview | None]
) -> None:
    try:
        action()
    except ConflictError:
        return
    require(False, f"{condition} does not hold, but there was no ConflictError.")


@contextmanager
def _store(subject: CheckedPlugin) -> Iterator[ObjectStore]:
    """Build the store of an address without objects, and leave it so."""
    folder = Path(tempfile.mkdtemp(dir=subject.folder))
    scheme, _, rest = subject.plugin.example(folder).partition("://")
    bucket, _, path = rest.partition("/")
    address = Address(scheme, bucket, f"/{path}" if scheme == "file" else path.strip("/"))
    store: ObjectStore = subject.plugin.build(subject.settings, StoreContext(address))
    require(
        not any(store.list("")),
        f"There are objects at {address}. Choose an address without any: the checks delete.",
    )
    try:
        yield store
    finally:
        for each in list(store.list("")):
            store.delete(each.key)
