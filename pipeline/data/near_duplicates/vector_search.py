"""Find the nearest vectors among many: cells around centres, and matrix products within them.

The vectors are assigned to cells by spherical k-means, trained on a sample; a query is compared
with the vectors in the cells whose centres are nearest: an inverted file, as in Jegou, Douze and
Schmid 2011 (Product quantization for nearest neighbor search, section IV). A cell holds about as
many vectors however many there are in all. Where there are many cells, they belong to regions with
centres of their own, and these to larger ones, so that a query is compared with the centres of a
few regions on each level: the hierarchical k-means tree of Muja and Lowe 2014 (Scalable nearest
neighbor algorithms for high dimensional data, section 3.2), searched from the top with a fixed
number of branches. Each thread works on cells of its own; the matrix library had better use one
thread (`near_duplicates.matches`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.data.reading.child_processes import processors

Array = np.ndarray[Any, Any]

_FEW = 4_096
_PROBES, _CELL = 8, 128
"""Cells that a query is compared with, and vectors in a cell, at most and on average."""
_UNDIVIDED, _BRANCHES, _REGION_PROBES = 1_024, 64, 12
"""Cells without regions, centres below one, and regions that a query goes through, at most."""
_SAMPLE_PER_CELL, _ROUNDS = 16, 4
_BLOCK, _DIVIDED_BLOCK = 4_096, 16_384
_CELL_BLOCK = 1 << 24
"""The most similarities in memory at once."""


class VectorIndex:
    """Unit vectors, float32 (N, D), that can be searched by cosine similarity."""

    def __init__(self, vectors_ND: Array, probes: int = _PROBES) -> None:
        count = len(vectors_ND)
        wanted = max(round((probes * count) ** 0.5), count // _CELL) if count > _FEW else 1
        self._cells = _Cells(vectors_ND, wanted)
        cells = len(self._cells)
        self._probes = min(probes, cells)
        nearest = self._cells.nearest(vectors_ND, 1).ravel()
        self._order = np.argsort(nearest, kind="stable")
        self._starts = np.searchsorted(nearest[self._order], np.arange(cells + 1))
        self._sorted = vectors_ND[self._order]

    def search(
        self, queries_ND: Array, threshold: float, most: int, own_N: Array | None = None
    ) -> tuple[Array, Array]:
        """Return pairs of a query's row and a vector's row that are similar.

        Args:
            queries_ND: the queries, unit vectors.
            threshold: the least cosine similarity.
            most: the number of vectors that are returned for a query, the most similar ones.
            own_N: the vector that each query is never paired with, -1 for none; by default the one
                with its number.
        """
        own_N = np.arange(len(queries_ND)) if own_N is None else own_N
        cells = self._cells.nearest(queries_ND, self._probes).ravel()
        order = np.argsort(cells, kind="stable")
        queries = order // self._probes
        ends = np.searchsorted(cells[order], np.arange(len(self._starts)))

        def in_cell(cell: int) -> list[tuple[Array, Array, Array]]:
            own_queries = queries[ends[cell] : ends[cell + 1]]
            return list(self._in_cell(cell, (queries_ND, own_N), own_queries, threshold, most))

        with ThreadPoolExecutor(processors()) as pool:
            hits_by_query = [
                hits for each in pool.map(in_cell, range(len(ends) - 1)) for hits in each
            ]
        rows, places, similarities = (
            np.concatenate(parts) for parts in zip(*hits_by_query, strict=True)
        )
        rows, places, _ = _best(rows, places, similarities, most)
        return rows, places

    def _in_cell(
        self, cell: int, given: tuple[Array, Array], queries: Array, threshold: float, most: int
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Yield rows of queries, rows of vectors, and similarities; a few blocks at a time."""
        queries_ND, own_N = given
        here = slice(self._starts[cell], self._starts[cell + 1])
        vectors, originals = self._sorted[here], self._order[here]
        block = max(1, _CELL_BLOCK // max(1, len(vectors)))
        for start in range(0, max(1, len(queries)), block):
            query_block = queries[start : start + block]
            similar = queries_ND[query_block] @ vectors.T
            rows, columns = np.nonzero(similar >= threshold)
            others = own_N[query_block[rows]] != originals[columns]
            rows, columns = rows[others], columns[others]
            values = similar[rows, columns]
            rows, columns, values = _best(rows, columns, values, most)
            yield query_block[rows], originals[columns], values


def _best(rows: Array, columns: Array, values: Array, most: int) -> tuple[Array, Array, Array]:
    """Return the entries with the highest values of each row."""
    if len(rows) > most:
        ranked = np.lexsort((-values, rows))
        rows, columns, values = rows[ranked], columns[ranked], values[ranked]
        few = np.arange(len(rows)) - np.searchsorted(rows, rows) < most
        rows, columns, values = rows[few], columns[few], values[few]
    return rows, columns, values


class _TreeLevel(NamedTuple):
    """Centres of regions or, on the last level, of cells."""

    centres_KD: Array
    starts: Array
    """The first of the centres below each centre of the level above, and the end of the last; on
    the first level, the first of all centres and their end."""


class _Cells:
    """Centres of cells below those of regions, so that nearest cells are reached in a few steps.

    Args:
        vectors_ND: the unit vectors; the centres are those of a sample of them.
        cells: the number of cells that is wanted.
    """

    def __init__(self, vectors_ND: Array, cells: int) -> None:
        generator = np.random.default_rng(0)
        size = min(len(vectors_ND), _SAMPLE_PER_CELL * cells) if cells > 1 else 0
        sample = vectors_ND[np.sort(generator.choice(len(vectors_ND), size, replace=False))]
        depth = 1 if cells <= _UNDIVIDED else math.ceil(math.log(cells, _BRANCHES))
        centres = _centres(sample, round(cells ** (1 / depth)), generator)
        self._levels = [_TreeLevel(centres, np.array([0, len(centres)]))]
        for number in range(2, depth + 1):
            self._divide(sample, round(cells ** (number / depth)), generator)

    def _divide(self, sample_ND: Array, size: int, generator: np.random.Generator) -> None:
        """Add a level, in which a centre has as many below it as its share of the sample."""
        above = self.nearest(sample_ND, 1).ravel()
        shares = np.bincount(above, minlength=len(self)) / max(1, len(sample_ND))
        counts = np.maximum(1, np.round(size * shares)).astype(int)
        order = np.argsort(above, kind="stable")
        ends = np.searchsorted(above[order], np.arange(len(self) + 1))
        below = [
            _centres(sample_ND[order[ends[number] : ends[number + 1]]], count, generator)
            for number, count in enumerate(counts)
        ]
        level = _TreeLevel(np.concatenate(below), np.cumsum([0, *map(len, below)]))
        self._levels.append(level)
        for _ in range(_ROUNDS):
            _move(level.centres_KD, sample_ND, self.nearest(sample_ND, 1).ravel())

    def __len__(self) -> int:
        return len(self._levels[-1].centres_KD)

    def nearest(self, vectors_ND: Array, count: int) -> Array:
        """Return the nearest cells of each vector (N, k), of those in the regions nearest to it."""
        if count == len(self):
            return np.tile(np.arange(count, dtype=np.int32), (len(vectors_ND), 1))
        return _nearest(vectors_ND, self._levels, count)


def _nearest(vectors_ND: Array, levels: list[_TreeLevel], count: int) -> Array:
    """Return the nearest centres on the last level (N, k) of each vector, going through each."""
    first, *others = levels

    def of_block(start: int) -> Array:
        block_BD = vectors_ND[start : start + block]
        numbers = [*[_REGION_PROBES] * len(others), count]
        near = _highest(block_BD @ first.centres_KD.T, numbers[0]).astype(np.int32)
        for level, number in zip(others, numbers[1:], strict=True):
            near = _nearest_below(block_BD, near, level, number)
        return near

    widest = max((int(np.diff(level.starts).max()) for level in others), default=0)
    block = min(_DIVIDED_BLOCK, _CELL_BLOCK // (_REGION_PROBES * widest)) if others else _BLOCK
    starts = range(0, max(1, len(vectors_ND)), block)
    with ThreadPoolExecutor(processors()) as pool:
        return np.concatenate(list(pool.map(of_block, starts)))


def _nearest_below(block_BD: Array, above_BP: Array, level: _TreeLevel, count: int) -> Array:
    """Return the nearest centres (B, k) of each vector below some centres of the level above."""
    probes, widest = above_BP.shape[1], int(np.diff(level.starts).max())
    similar_BPK = np.full((*above_BP.shape, widest), -np.inf, np.float32)
    rows, places = np.divmod(np.argsort(above_BP, axis=None, kind="stable"), probes)
    ends = np.searchsorted(above_BP[rows, places], np.arange(len(level.starts)))
    for region in np.flatnonzero(np.diff(ends)):
        own = slice(ends[region], ends[region + 1])
        first, last = level.starts[region : region + 2]
        values = block_BD[rows[own]] @ level.centres_KD[first:last].T
        similar_BPK[rows[own], places[own], : last - first] = values
    place, column = np.divmod(_highest(similar_BPK.reshape(len(block_BD), -1), count), widest)
    below: Array = level.starts[np.take_along_axis(above_BP, place, axis=1)] + column
    return below.astype(np.int32)


def _highest(values_NK: Array, count: int) -> Array:
    """Return the columns of the highest values of each row, at most so many, in any order."""
    if count >= values_NK.shape[1]:
        return np.tile(np.arange(values_NK.shape[1]), (len(values_NK), 1))
    if count == 1:
        highest: Array = values_NK.argmax(axis=1)[:, None]
        return highest
    # Values alone are partitioned several times as fast as their columns.
    least_N1 = np.partition(values_NK, -count, axis=1)[:, -count, None]
    are_highest = values_NK >= least_N1
    tied = np.flatnonzero(are_highest.sum(axis=1) > count)
    are_highest[tied] = False
    are_highest[tied[:, None], np.argpartition(values_NK[tied], -count, axis=1)[:, -count:]] = True
    return np.nonzero(are_highest)[1].reshape(len(values_NK), count)


def _centres(sample_ND: Array, count: int, generator: np.random.Generator) -> Array:
    """Return centres of cells, as unit vectors; at most as many as there are in the sample."""
    if count == 1 or len(sample_ND) == 0:
        return np.zeros((1, sample_ND.shape[1]), np.float32)
    count = min(count, len(sample_ND))
    centres = sample_ND[generator.choice(len(sample_ND), count, replace=False)]
    levels = [_TreeLevel(centres, np.array([0, count]))]
    for _ in range(_ROUNDS):
        _move(centres, sample_ND, _nearest(sample_ND, levels, 1).ravel())
    return centres


def _move(centres_KD: Array, sample_ND: Array, nearest_N: Array) -> None:
    """Move each centre to the mean direction of the vectors that are nearest to it."""
    order = np.argsort(nearest_N, kind="stable")
    starts = np.searchsorted(nearest_N[order], np.arange(len(centres_KD)))
    filled = np.flatnonzero(np.diff(np.append(starts, len(sample_ND))))
    sums = np.add.reduceat(sample_ND[order], starts[filled], axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    centres_KD[filled] = sums / np.maximum(lengths, 1e-6)
