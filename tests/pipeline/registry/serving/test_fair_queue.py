"""The queue of images takes turns between requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.registry.serving.fair_queue import FairQueue


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    """The single image of a later request is taken second."""
    queue: FairQueue[str] = FairQueue()
    queue.put("large", [f"large {each}" for each in range(5)])
    queue.put("small", ["small"])
    assert queue.take(3) == ["large 0", "small", "large 1"]
    assert queue.take(9) == ["large 2", "large 3", "large 4"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20), st.integers(1, 7))
def test_everything_is_taken_once_and_in_its_order(puts: list[tuple[int, int]], most: int) -> None:
    """Whatever the groups, each item comes out once, and those of a group in order."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    expected: dict[int, list[tuple[int, int]]] = {}
    number = 0
    for group, count in puts:
        items = [(group, number + each) for each in range(count)]
        number += count
        expected.setdefault(group, []).extend(items)
        queue.put(group, items)
    queue.close()
    taken: list[tuple[int, int]] = []
    while batch := queue.take(most):
        assert len(batch) <= most
        taken += batch
    for group, items in expected.items():
        assert [each for each in taken if each[0] == group] == items
    assert len(taken) == number
