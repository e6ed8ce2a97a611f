"""Find the nearest vectors among many: cells around centres, and matrix products within them.

The vectors are assigned to cells by spherical k-means, trained on a sample; a query is compared
with the vectors in the cells whose centres are nearest: an inverted file, as in Jegou, Douze and
Schmid 2011 (Product quantization for nearest neighbor search, section IV). Each thread works on
cells of its own; the matrix library had better use one thread (`near_duplicates.matches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from patchline.pipeline.data.reading.child_processes import processors

Array = np.ndarray[Any, Any]

_FEW = 4_096
_PROBES, _MOST_CELLS = 6, 2_048
_SAMPLE_PER_CELL, _ROUNDS = 32, 4
_BLOCK = 4_096
_CELL_BLOCK = 1 << 24
"""The most similarities in memory at once."""


class VectorIndex:
    """Unit vectors, float32 (N, D), that can be searched by cosine similarity."""

    def __init__(self, vectors_ND: Array, probes: int = _PROBES) -> None:
        count = len(vectors_ND)
        cells = 1 if count <= _FEW else min(_MOST_CELLS, round((probes * count) ** 0.5))
        self._probes = min(probes, cells)
        self._centres = _centres(vectors_ND, cells)
        nearest = _nearest(vectors_ND, self._centres)
        self._order = np.argsort(nearest, kind="stable")
        self._starts = np.searchsorted(nearest[self._order], np.arange(cells + 1))
        self._sorted = vectors_ND[self._order]

    def search(
        self, queries_ND: Array, threshold: float, most: int, own_N: Array | None = None
    ) -> tuple[Array, Array]:
        """Return pairs of a query's row and a vector's row that are similar.

        Args:
            queries_ND: unit vectors.
            threshold: the least cosine similarity.
            most: the number of vectors that are returned for a query, the most similar ones.
            own_N: the vector that each query is never paired with, -1 for none; by default the one
                with its number.
        """
        own_N = np.arange(len(queries_ND)) if own_N is None else own_N
        cells = self._probed(queries_ND).ravel()
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

    def _probed(self, queries_ND: Array) -> Array:
        """Return the cells of each query: (queries, probes)."""
        if self._probes == len(self._centres):
            return np.tile(np.arange(self._probes, dtype=np.int32), (len(queries_ND), 1))

        def nearest(start: int) -> Array:
            different = queries_ND[start : start + _BLOCK] @ -self._centres.T
            near = np.argpartition(different, self._probes - 1, axis=1)[:, : self._probes]
            return near.astype(np.int32)  # a copy: a view would keep all columns in memory

        with ThreadPoolExecutor(processors()) as pool:
            return np.concatenate(list(pool.map(nearest, range(0, len(queries_ND), _BLOCK))))

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


def _nearest(rows_ND: Array, centres_KD: Array) -> Array:
    """Return the nearest centre of each row."""
    starts = range(0, max(1, len(rows_ND)), _BLOCK)

    def nearest(start: int) -> Array:
        cells: Array = (rows_ND[start : start + _BLOCK] @ centres_KD.T).argmax(axis=1)
        return cells

    with ThreadPoolExecutor(processors()) as pool:
        return np.concatenate(list(pool.map(nearest, starts)))


def _centres(vectors_ND: Array, cells: int) -> Array:
    """Return centres of cells, as unit vectors."""
    if cells == 1:
        return np.zeros((1, vectors_ND.shape[1]), np.float32)
    generator = np.random.default_rng(0)
    size = min(len(vectors_ND), _SAMPLE_PER_CELL * cells)
    sample = vectors_ND[np.sort(generator.choice(len(vectors_ND), size, replace=False))]
    centres = sample[generator.choice(size, cells, replace=False)]
    for _ in range(_ROUNDS):
        nearest = _nearest(sample, centres)
        order = np.argsort(nearest, kind="stable")
        starts = np.searchsorted(nearest[order], np.arange(cells))
        filled = np.flatnonzero(np.diff(np.append(starts, size)))
        sums = np.add.reduceat(sample[order], starts[filled], axis=0)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres[filled] = sums / np.maximum(lengths, 1e-6)
    return centres
