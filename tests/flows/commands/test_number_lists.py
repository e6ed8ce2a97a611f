"""Several numbers behind one flag."""

from __future__ import annotations

import pytest

from patchline.flows.commands.number_lists import each_with_its_flag


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "run --data.bands 4 3 2 photos",
            "run --data.bands 4 --data.bands 3 --data.bands 2 photos",
        ),
        ("run --data.bands 4 photos", "run --data.bands 4 photos"),
        ("run --data.mean 0.1 0.2 0.3 7", "run --data.mean 0.1 --data.mean 0.2 --data.mean 0.3 7"),
        ("run --seed 1 2 --data.bands=4", "run --seed 1 2 --data.bands=4"),
        ("run -- --data.bands 1 2", "run -- --data.bands 1 2"),
    ],
)
def test_a_flag_is_repeated_for_each_of_its_numbers(given: str, expected: str) -> None:
    """At most three numbers that follow a flag belong to it; everything else stays as it is."""
    assert each_with_its_flag(given.split()) == expected.split()
