"""The number of processors is that of the container, not of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patchline.pipeline.workers.host.processors import default_threads, usable_processors


@pytest.fixture(autouse=True)
def _large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("", 16),
        ("max 100000\n", 16),
        ("50000 100000\n", 1),
        ("150000 100000\n", 2),
        ("6400000 100000\n", 16),
        ("1 0\n", 16),
    ],
)
def test_the_quota_of_a_container_counts(tmp_path: Path, told: str, expected: int) -> None:
    """A fraction of a processor is a processor; more than there are is as many as there are."""
    if told:
        (tmp_path / "cpu.max").write_text(told)
    assert usable_processors(tmp_path) == expected


def test_the_older_kind_of_quota_counts(tmp_path: Path) -> None:
    """-1 means none."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    assert usable_processors(tmp_path) == 4
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_processors(tmp_path) == 16


@pytest.mark.parametrize(("given", "expected"), [("3", 3), ("0", 16), ("many", 16)])
def test_the_common_variable_decides_the_threads(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: int
) -> None:
    """What is no number of threads is left out."""
    monkeypatch.setattr("patchline.pipeline.workers.host.processors._quota", lambda _: float("inf"))
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads() == expected
