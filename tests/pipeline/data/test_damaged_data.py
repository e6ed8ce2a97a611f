"""Damaged archives, shards and folders with odd names: a manifest or a sentence, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fuzz import fuzz_data
from benchmarks.mutated_data import KINDS, write_case
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[3]


def test_some_damaged_data_sets_are_answered() -> None:
    """Whatever is packed, and however it is damaged, it is read or refused by name."""
    found, failures = fuzz_data(12, seed=1)
    assert failures == []
    assert found["read"] > 2
    assert found["refused with a reason"] > 1
    assert found["peak memory, MiB"] < 1000


@pytest.mark.slow
def test_thousands_of_damaged_data_sets_are_answered() -> None:
    """The same for 5,000 of them, each with several images."""
    found, failures = fuzz_data(5000, seed=2)
    assert failures == []
    assert found["cases"] == found["read"] + found["refused with a reason"] == 5000
    assert found["peak memory, MiB"] < 1000


def test_a_number_is_always_the_same_data(tmp_path: Path) -> None:
    """A case that fails can be made again from its number and the seed."""
    for number in range(2 * len(KINDS)):
        made = []
        for name in ("one", "two"):
            folder = tmp_path / name / str(number)
            write_case(number, 5, folder)
            files = sorted(file for file in folder.rglob("*") if file.is_file())
            made.append([(file.relative_to(folder), file.read_bytes()) for file in files])
        assert made[0] == made[1]
        assert made[0]


def test_what_is_written_outside_counts(tmp_path: Path) -> None:
    """A file, a folder and a link that a case makes outside its folder are each counted."""
    (tmp_path / "inside").mkdir()
    code = f"""
import os
from pathlib import Path
from benchmarks.fuzz import Range, answer_cases
top = Path({str(tmp_path)!r})
def answer(case, number):
    (top / "inside" / str(number)).write_text("")
    if number == 1:
        (top / "out").write_text("")
        (top / "folder").mkdir()
        (top / "link").symlink_to("/")
    return "read", ""
answer_cases(Range(0, 3, top / "answers"), lambda number: number, answer, top / "inside")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=patient(60))
    lines = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [line["side_effects"] for line in lines] == [{}, {"write": 3}, {}]
