"""Files are named for what they hold."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "flows", "plugins", "tests", "benchmarks", "examples")
BANNED_NAMES = {"utils", "common", "helpers", "base", "types", "misc"}


def test_no_file_has_a_name_that_says_nothing() -> None:
    """A stranger opens the right file at the first try."""
    named = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    assert len(named) > 100
    assert not [file for file in named if file.stem in BANNED_NAMES]
