"""Rows are divided among workers, and what these have done arrives in the order of the rows."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.worker_parts import map_rows, number_of_parts, read_lines
from tests.pipeline.workers.doubling_worker import DOUBLING, Doubling
from tests.pipeline.workers.wide_launcher import Wide


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Wide:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    return Wide()


def test_rows_are_divided_and_results_are_in_order(wide: Wide) -> None:
    """Each worker gets a range, and leaves nothing once its results were taken."""
    rows, done, found, sums = list(range(11)), list[int](), list[int](), list[int]()
    with worker_start.use_launcher("wide", lambda: wide):
        assert [number_of_parts(each, 3) for each in (2, 11, 100)] == [1, 3, 4]
        given = lambda *_: Doubling(refused=-1)  # noqa: E731
        with map_rows(DOUBLING, rows, 3, given, done.append) as parts:
            for folder, own, result in parts:
                doubled = list(read_lines(folder / "doubled.jsonl"))
                assert doubled == [2 * row for row in own]
                found += doubled
                sums.append(result.value)
    assert found == [2 * row for row in rows]
    assert (len(wide.parts), done[-1], sum(sums)) == (3, 11, 110)
    assert not list(Path(".patchline").glob(".building-*"))
    assert number_of_parts(100, 3) == 1  # without that launcher


def test_an_error_of_one_part_ends_the_others(wide: Wide) -> None:
    """Results before it have arrived."""
    with (
        worker_start.use_launcher("wide", lambda: wide),
        map_rows(DOUBLING, list(range(9)), 4, lambda *_: Doubling(refused=5)) as parts,
    ):
        assert next(parts)[2].value == 2
        with pytest.raises(DataError, match=r"^5 is refused\.$"):
            list(parts)
    assert not [each for each in psutil.Process().children() if DOUBLING.module in each.cmdline()]
    assert not list(Path(".patchline").glob(".building-*"))
