"""Confused pairs and the part of a large matrix that is shown."""

from __future__ import annotations

import numpy as np

from patchline.pipeline.evaluation.metrics.confusion_matrix import (
    REST,
    ConfusionCells,
    build_shown_matrix,
    find_confused_pairs,
)


def _confusion(num_classes: int) -> list[list[int]]:
    generator = np.random.default_rng(num_classes)
    counts = generator.integers(0, 4, (num_classes, num_classes)) + 20 * np.eye(
        num_classes, dtype=int
    )
    return [[int(count) for count in row] for row in counts]


def test_pairs_come_by_their_images() -> None:
    """The most frequent confusions are listed, most images first, never the right answers."""
    confusion = _confusion(8)
    pairs = find_confused_pairs(ConfusionCells.of_matrix(confusion), "abcdefgh")
    every = sorted((confusion[i][j] for i in range(8) for j in range(8) if i != j), reverse=True)
    assert [pair.images for pair in pairs] == every[:10]
    for pair in pairs:
        row, column = "abcdefgh".index(pair.label), "abcdefgh".index(pair.predicted)
        assert row != column
        assert (pair.images, pair.of) == (confusion[row][column], sum(confusion[row]))


def test_of_a_large_matrix_the_most_confused_classes_are_shown() -> None:
    """With more classes, those in most confusions are shown, and each row is still complete."""
    confusion = _confusion(60)
    for k in (7, 31):
        confusion[k][59 - k] += 500
    shown = build_shown_matrix(ConfusionCells.of_matrix(confusion), [str(k) for k in range(60)])
    assert shown.is_part
    assert (len(shown.rows), shown.columns) == (20, [*shown.rows, REST])
    assert {"7", "52", "31", "28"} <= set(shown.rows)
    assert sorted(shown.rows, key=int) == shown.rows
    for name, row in zip(shown.rows, shown.counts, strict=True):
        assert sum(row) == sum(confusion[int(name)])
        assert row[shown.rows.index(name)] == confusion[int(name)][int(name)]
