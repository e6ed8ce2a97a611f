"""When the workers of the later stages are prepared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from patchline.pipeline.workers import prewarm, worker_start
from patchline.pipeline.workers.prewarm import Worker

LATER = (
    Worker("patchline.pipeline.evaluation"),
    Worker("patchline.pipeline.packaging", accelerator=False),
)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that were asked for, instead of their processes."""
    modules: list[str] = []

    def prepare(module: str, *, to_lead: bool) -> None:
        assert not to_lead
        modules.append(module)

    monkeypatch.setattr(worker_start, "prepare", prepare)
    return modules


def _progress(seconds: float, done: int, total: int) -> dict[str, Any]:
    return {"kind": "progress", "time": 1000 + seconds, "done": done, "total": total}


def test_workers_are_prepared_when_a_quarter_of_a_minute_is_left(prepared: list[str]) -> None:
    """The time that is left comes from the steps' own rate, the first ones not counted."""
    see = prewarm.before_the_end(lambda _: None, LATER)
    for seconds, done in ((5, 1), (15, 11), (65, 61), (88, 84)):
        see(_progress(seconds, done, total=100))
    assert not prepared
    see(_progress(89, 85, total=100))
    assert prepared == ["patchline.pipeline.evaluation", "patchline.pipeline.packaging"]


@pytest.mark.parametrize("case", ["short", "little memory", "resumed"])
def test_a_short_training_has_them_prepared_after_its_first_steps(
    prepared: list[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """One event says nothing about the rate; the second one does. Other events say nothing.

    Nothing is prepared where memory is short, nor by the steps of an earlier attempt.
    """
    if case == "little memory":
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    see, earlier = prewarm.before_the_end(lambda _: None, LATER), 900 * (case == "resumed")
    see(_progress(5, earlier + 1, total=earlier + 10 + earlier // 9))
    see({"kind": "metrics", "time": 1006})
    assert not prepared
    see(_progress(6, earlier + 2, total=earlier + 10 + earlier // 9))
    assert bool(prepared) is (case == "short")
