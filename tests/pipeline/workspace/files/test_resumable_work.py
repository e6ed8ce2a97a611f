"""What is resumed and what is copied is whole, wherever a kill or damage has struck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.resumable_work import (
    EarlierResult,
    EarlierRows,
    ResumableArray,
)
from tests.small_disks import small_disk

ROWS, WHAT = 40, "numbers"
SHAPE = (ROWS, 2, 4, 3)


def values() -> np.ndarray[Any, Any]:
    """Return an array with rows that are equal to others, some of zeros only."""
    zeros_and_ones = np.random.default_rng(0).integers(0, 2, ROWS)
    return (zeros_and_ones * np.ones(SHAPE[::-1])).T.astype(np.uint8)


def array_of(folder: Path) -> ResumableArray:
    return ResumableArray(folder / "some.npy", SHAPE, np.uint8, WHAT)


def compute(array: ResumableArray, rows: np.ndarray[Any, Any], stop: int = ROWS) -> list[int]:
    """Resume, compute what is missing up to a row in pieces of 1 to 7, and return these rows."""
    intact = array.finished.intact()
    array.begin(intact)
    there = {row for piece in intact for row in range(*piece)}
    sizes, row, computed = np.random.default_rng(1), 0, list[int]()
    while row < stop:
        size = 0
        while row + size < stop and row + size not in there and size < sizes.integers(1, 8):
            size += 1
        if size:
            array.write(row, rows[row : row + size])
            computed += range(row, row + size)
        row += max(1, size)
    return computed


def damage(file: Path, how: str, place: float) -> None:
    """Flip a bit of a file at a relative position, cut it there, or remove it."""
    content = bytearray(file.read_bytes())
    at = min(int(place * len(content)), len(content) - 1)
    if how == "removed":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[:at])
    else:
        content[at] ^= 1 << at % 7
        file.write_bytes(content)


@pytest.mark.parametrize("suffix", [".npy", ".pieces.jsonl"])
@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_what_is_resumed_is_whole(tmp_path: Path, suffix: str, how: str) -> None:
    """Wherever a file of a half-finished array is damaged, the result has the same bytes.

    A piece that is not damaged is not computed again: a flipped bit costs one piece at most, or all
    of them if it changes the form of the array.
    """
    for trial in range(1 if how == "removed" else 6):
        array = array_of(tmp_path / str(trial))
        assert compute(array, values(), stop=30) == list(range(30))
        file = array.file.with_suffix(suffix)
        in_header = suffix == ".npy" and trial / 6 * file.stat().st_size < 128
        damage(file, how, trial / 6)
        computed = compute(array, values())
        assert np.array_equal(array.opened(), values())
        assert set(range(30, ROWS)) <= set(computed)
        if how == "flipped" and not in_header:
            assert len(computed) <= 7 + ROWS - 30
        assert compute(array, values()) == []


def test_a_piece_is_recorded_after_it_was_written(tmp_path: Path) -> None:
    """Whatever line of the log is the last, the pieces up to it are intact and no others."""
    array = array_of(tmp_path)
    compute(array, values())
    lines = array.finished.log.read_bytes().splitlines(keepends=True)
    whole = array.finished.intact()
    for count in range(0, len(lines) + 1, 2):
        for half in (b"", b"[", [*lines, b""][count][:-2]):
            array.finished.log.write_bytes(b"".join(lines[:count]) + half)
            assert array.finished.intact() == whole[:count]
            array.finished.keep(whole[:count])
            assert array.finished.log.read_bytes() == b"".join(lines[:count])


@pytest.mark.parametrize(("shape", "dtype"), [((ROWS + 1, *SHAPE[1:]), "u1"), (SHAPE, "i1")])
def test_an_array_of_another_form_is_computed_again(
    tmp_path: Path, shape: tuple[int, ...], dtype: str
) -> None:
    """The same file name with other rows or another type is no match."""
    compute(array_of(tmp_path), values())
    other = ResumableArray(tmp_path / "some.npy", shape, dtype, WHAT)
    assert other.finished.recorded()
    assert other.finished.intact() == []


def test_the_space_is_reserved(tmp_path: Path) -> None:
    """A full disk is an error before the first piece is computed."""
    with small_disk(tmp_path / "disk", 1) as disk:
        array = ResumableArray(disk / "some.npy", (2**20, 3), np.float32, WHAT)
        with pytest.raises(StorageError, match="There is no space left"):
            array.begin([])


def earlier(folder: Path, contents: list[str], read: Callable[[str], int]) -> EarlierResult:
    """Return a finished result whose row is computed from its content."""
    array = ResumableArray(folder / "earlier.npy", (len(contents), 2), np.int64, WHAT)
    compute(array, np.array([[read(each)] * 2 for each in contents]), stop=len(contents))
    return EarlierResult(contents, array.finished, array.read)


@pytest.mark.parametrize("seed", range(3))
def test_only_undamaged_rows_are_copied(tmp_path: Path, seed: int) -> None:
    """Rows of earlier results with the same content, wherever they are; the first result counts."""
    randoms = np.random.default_rng(seed)
    first, second, wanted = ([str(randoms.integers(60)) for _ in range(30)] for _ in range(3))
    results = [
        earlier(tmp_path / "1", first, int),
        earlier(tmp_path / "2", second, lambda c: -int(c)),
    ]

    def copied() -> dict[int, int]:
        rows = EarlierRows(results, wanted)
        return {place: int(row[1]) for place, row in rows.copies(wanted)}

    there = {c: int(c) if c in first else -int(c) for c in {*first, *second}}
    assert copied() == {place: there[c] for place, c in enumerate(wanted) if c in there}
    damage(tmp_path / "1" / "earlier.npy", "flipped", randoms.uniform(0.3, 1))
    after, finished = copied(), results[0].finished
    [broken] = set(finished.recorded()) - set(finished.intact())
    lost = {*first[slice(*broken)]}
    assert {place for place, c in enumerate(wanted) if c in there and c not in lost} <= set(after)
    assert all(value == there[wanted[place]] for place, value in after.items())
