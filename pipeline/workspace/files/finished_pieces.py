"""Which pieces of a long computation are finished: it resumes after a kill, and damage is noticed.

The one way in which decoded images, features of a frozen model and predictions of many images are
resumed. Their rows are computed in pieces. A log beside the results has a line for each finished
piece: its first row, the row after its last, and a digest of these two and of the piece's bytes.
The line is appended after the bytes have been written. A piece without a line is computed again,
and so is one whose bytes do not match its line, because a bit has changed or the machine lost
power. Whatever is killed, at any moment, the pieces that are `intact` are whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text

logger = logging.getLogger(__name__)


class Piece(NamedTuple):
    """A range of rows."""

    first: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.first


class FinishedPieces:
    """The log of the finished pieces of one result.

    Args:
        log: the file; its folder exists before a piece is added.
        digest: returns the digest of a piece's bytes as they are on disk, or raises an OSError.
        what: the rows are, for a warning: "decoded images".
    """

    def __init__(self, log: Path, digest: Callable[[Piece], str], what: str) -> None:
        self.log = log
        self._digest, self._what = digest, what

    def recorded(self) -> dict[Piece, str]:
        """Return the pieces of the log and their digests, whether they are intact or not."""
        try:
            return dict(_entries(self.log.read_bytes().splitlines()))
        except OSError:
            return {}

    def intact(self) -> list[Piece]:
        """Return the finished pieces, in the order in which they were finished."""
        recorded = self.recorded()
        with ThreadPoolExecutor() as pool:
            matches = list(pool.map(self._matches, recorded.keys(), recorded.values()))
        return [piece for piece, match in zip(recorded, matches, strict=True) if match]

    def is_intact(self, piece: Piece) -> bool:
        """Return whether a piece is finished and matches its digest."""
        recorded = self.recorded()
        return piece in recorded and self._matches(piece, recorded[piece])

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Forget all pieces but these, which are intact; to be called before pieces are added.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        recorded = self.recorded()
        kept = [piece for piece in pieces if piece in recorded]
        self.warn(len(recorded) - len(kept), len(recorded))
        write_text(self.log, "".join(_line(piece, recorded[piece]) for piece in kept))

    def warn(self, damaged: int, total: int) -> None:
        """Log how many of all pieces are damaged, if any are."""
        if damaged:
            logger.warning(
                "%d of %d pieces of the %s are damaged; they are computed again.",
                *(damaged, total, self._what),
            )

    def add(self, piece: Piece) -> None:
        """Record that a piece has been written.

        Raises:
            StorageError: if the disk is full or read-only.
        """
        line = _line(piece, self._digest_of(piece))
        with storage_errors(self.log), self.log.open("a", encoding="utf-8") as opened:
            opened.write(line)

    def _matches(self, piece: Piece, digest: str) -> bool:
        try:
            return self._digest_of(piece) == digest
        except OSError:
            return False

    def _digest_of(self, piece: Piece) -> str:
        """Return a digest of the rows' numbers, too: equal bytes at another place are no match."""
        described = f"{piece.first} {piece.stop} {self._digest(piece)}"
        return hashlib.sha256(described.encode()).hexdigest()


def _line(piece: Piece, digest: str) -> str:
    return f"{json.dumps([*piece, digest])}\n"


def _entries(lines: list[bytes]) -> Iterator[tuple[Piece, str]]:
    """Yield the lines that are whole; a killed process may have written half of one."""
    for line in lines:
        try:
            first, stop, digest = json.loads(line)
            piece = Piece(int(first), int(stop))
        except (ValueError, TypeError, OverflowError):
            continue
        if 0 <= piece.first < piece.stop:
            yield piece, str(digest)
