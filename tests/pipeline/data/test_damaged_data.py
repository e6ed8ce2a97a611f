"""Damaged archives, shards and folders with odd names: a manifest or a sentence, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.fuzz import fuzz_data
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[3]


def test_some_damaged_data_sets_are_answered() -> None:
    """Whatever is packed, and however it is damaged, it is read or refused by name."""
    found, failures = fuzz_data(12, seed=1)
    assert failures == []
    assert found["read"] > 2
    assert found["refused with a reason"] > 1
    assert found["peak memory, MiB"] < 1000


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
