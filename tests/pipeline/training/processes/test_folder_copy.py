"""Machines that do not share the folder of a training run get what the first one has written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.processes import ranks
from patchline.pipeline.training.processes.ranks import copy_from_first
from tests.patience import patient

SIZE = 3


class Rank:
    """A thread as one of the ranks: 0 and 1 on the first machine, 2 on another."""

    barrier = threading.Barrier(SIZE)
    parts: ClassVar[list[Any]] = [None] * SIZE

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.is_first, self.writes_files = rank == 0, rank == 2

    def _all(self, value: Any) -> list[Any]:
        self.parts[self._rank] = value
        self.barrier.wait(patient(30))
        parts = list(self.parts)
        self.barrier.wait(patient(30))
        return parts

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(values)).sum(0)

    def from_first(self, kind: type[FrozenModel], compute: Callable[[], FrozenModel]) -> Any:
        return kind.model_validate(self._all(compute() if self.is_first else None)[0])

    def bytes_of_first(self, content: bytes, size: int) -> bytes:
        found: bytes = self._all(content)[0]
        assert len(found) == size
        return found


def test_the_other_machine_has_the_files_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New and changed ones in pieces, without what belongs to one machine; others are deleted."""
    monkeypatch.setattr(ranks, "_PIECE_BYTES", 4)
    first, other = tmp_path / "first", tmp_path / "other"
    for name, content in {
        "last.safetensors": "a newer state",
        "best-4/model.json": "best",
        "same": "same",
        "empty": "",
        "halvings.json": "[3]",
        "events.jsonl": "of the first",
        "job.json": "of the first",
        "processes/result.json": "of the first",
        ".first.lock": "",
    }.items():
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        (first / name).write_text(content)
    for name in ("last.safetensors", "best-2/model.json", "same", "job.json", "node-1/job.json"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text("same" if name == "same" else "of the other")
    unchanged = (other / "same").stat().st_mtime_ns
    with ThreadPoolExecutor(SIZE) as pool:
        ranks_of: list[Any] = list(map(Rank, range(SIZE)))
        list(pool.map(copy_from_first, ranks_of, (first, first, other)))
    files = {f.relative_to(other).as_posix() for f in other.rglob("*") if f.is_file()}
    assert files == {
        *("last.safetensors", "best-4/model.json", "same", "empty", "halvings.json"),
        *("job.json", "node-1/job.json"),
    }
    assert (other / "last.safetensors").read_text() == "a newer state"
    assert (other / "job.json").read_text() == "of the other"
    assert (other / "same").stat().st_mtime_ns == unchanged
