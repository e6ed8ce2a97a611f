"""Rows that were computed before, for other data, found by what each was computed from.

Images that are added to a folder do not make the decoded images and the features of the others
worthless: what an earlier result of the same format holds undamaged is copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from patchline.pipeline.workspace.files.finished_pieces import FinishedPieces, Piece


@dataclass(frozen=True, eq=False)
class EarlierResult:
    """A result of the same format, complete or not.

    Attributes:
        contents: identifies what each row was computed from.
        finished: its pieces.
        read: returns the rows of a piece.
    """

    contents: Sequence[Hashable]
    finished: FinishedPieces
    read: Callable[[Piece], Sequence[Any] | Any]


class EarlierRows:
    """Rows of earlier results that can be copied instead of computed.

    Args:
        results: the earlier results; the first that has a row gives it.
        missing: identifies what the rows that are needed would be computed from.
    """

    def __init__(self, results: Iterable[EarlierResult], missing: Iterable[Hashable]) -> None:
        self._places: dict[Hashable, tuple[EarlierResult, Piece, int]] = {}
        self._intact: dict[tuple[EarlierResult, Piece], bool] = {}
        left = set(missing)
        sources = iter(results)
        while left and (result := next(sources, None)):
            for piece in result.finished.recorded():
                for row, content in enumerate(result.contents[slice(*piece)]):
                    if content in left:
                        self._places[content] = result, piece, row
                        left.remove(content)

    def copies(self, contents: Iterable[Hashable]) -> Iterator[tuple[int, Any]]:
        """Yield the rows that are held undamaged, piece by piece.

        Args:
            contents: identifies what each row of interest would be computed from.

        Yields:
            The place in `contents`, and the row as it is kept.
        """
        by_piece: dict[tuple[EarlierResult, Piece], list[tuple[int, int]]] = {}
        for place, content in enumerate(contents):
            if content in self._places:
                result, piece, row = self._places[content]
                by_piece.setdefault((result, piece), []).append((place, row))
        for (result, piece), places in by_piece.items():
            copied: list[tuple[int, Any]] = []
            if self._is_intact(result, piece):
                with contextlib.suppress(OSError, ValueError, IndexError):  # removed meanwhile
                    held = result.read(piece)
                    copied = [(place, held[row]) for place, row in places]
            yield from copied

    def _is_intact(self, result: EarlierResult, piece: Piece) -> bool:
        if (result, piece) not in self._intact:
            self._intact[result, piece] = result.finished.is_intact(piece)
        return self._intact[result, piece]
