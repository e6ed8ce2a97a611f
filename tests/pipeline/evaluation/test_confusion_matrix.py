"""Confused pairs and the part of a large matrix that is shown."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.evaluation.confusion_matrix import REST, confused_pairs, shown_matrix


def _confusion(num_classes: int) -> list[list[int]]:
    generator = np.random.default_rng(num_classes)
    counts = generator.integers(0, 4, (num_classes, num_classes)) + 20 * np.eye(
        num_classes, dtype=int
    )
    return [[int(count) for count in row] for row in counts]


def test_pairs_come_by_their_images() -> None:
    """The most frequent confusions are listed, most images first, never the right answers."""
    confusion = _confusion(8)
    classes = [f"c{k}" for k in range(8)]
    pairs = confused_pairs(confusion, classes)
    counts = [pair.images for pair in pairs]
    every = sorted((confusion[i][j] for i in range(8) for j in range(8) if i != j), reverse=True)
    assert counts == every[:10]
    for pair in pairs:
        row, column = classes.index(pair.label), classes.index(pair.predicted)
        assert row != column
        assert (pair.images, pair.of) == (confusion[row][column], sum(confusion[row]))


def test_without_errors_there_are_no_pairs() -> None:
    """A diagonal confuses nothing."""
    assert confused_pairs([[3, 0], [0, 5]], ["a", "b"]) == []


@pytest.mark.parametrize("num_classes", [2, 30])
def test_a_matrix_that_fits_is_shown_whole(num_classes: int) -> None:
    """Up to thirty classes every count is shown, with its share of the true class."""
    confusion = _confusion(num_classes)
    shown = shown_matrix(confusion, [str(k) for k in range(num_classes)])
    assert not shown.is_part
    assert shown.counts == confusion
    assert shown.rows == shown.columns
    assert np.sum(shown.shares, axis=1) == pytest.approx(1)


def test_of_a_large_matrix_the_most_confused_classes_are_shown() -> None:
    """With more classes, those in most confusions are shown, and each row is still complete."""
    confusion = _confusion(60)
    for k in (7, 31):
        confusion[k][59 - k] += 500
    shown = shown_matrix(confusion, [str(k) for k in range(60)])
    assert shown.is_part
    assert len(shown.rows) == 20
    assert shown.columns == [*shown.rows, REST]
    assert {"7", "52", "31", "28"} <= set(shown.rows)
    assert sorted(shown.rows, key=int) == shown.rows
    for name, row in zip(shown.rows, shown.counts, strict=True):
        assert sum(row) == sum(confusion[int(name)])
        assert row[shown.rows.index(name)] == confusion[int(name)][int(name)]


def test_a_large_matrix_with_few_confusions_is_filled_up() -> None:
    """Where few classes are confused, others are shown beside them."""
    confusion = (5 * np.eye(40, dtype=int)).tolist()
    confusion[35][2] = 1
    shown = shown_matrix(confusion, [str(k) for k in range(40)])
    assert len(shown.rows) == 20
    assert "35" in shown.rows
    assert sum(row[-1] for row in shown.counts) == 0


def test_a_class_without_images_has_shares_of_zero() -> None:
    """An empty row divides by nothing."""
    shown = shown_matrix([[3, 1, 0], [0, 0, 0], [0, 2, 5]], ["a", "b", "c"])
    assert shown.shares[1] == [0, 0, 0]
