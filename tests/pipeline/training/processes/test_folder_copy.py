"""Machines that do not share the folder of a training run get what the first one has written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.processes import folder_copy
from patchline.pipeline.training.processes.folder_copy import copy_from_first
from tests.patience import patient

SIZE = 3


class Agreement:
    """What the ranks, threads of this process, pass to each other."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(SIZE)
        self.parts: list[Any] = [None] * SIZE

    def all(self, rank: int, value: Any) -> list[Any]:
        self.parts[rank] = value
        self.barrier.wait(patient(30))
        parts = list(self.parts)
        self.barrier.wait(patient(30))
        return parts


class Rank:
    """One of the ranks: 0 and 1 on the first machine, 2 on another."""

    def __init__(self, agreement: Agreement, rank: int) -> None:
        self._agreement, self._rank = agreement, rank
        self.is_first, self.writes_files = rank == 0, rank == 2

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._agreement.all(self._rank, values)).sum(0)

    def from_first(self, kind: type[FrozenModel], compute: Callable[[], FrozenModel]) -> Any:
        value = self._agreement.all(self._rank, compute() if self.is_first else None)[0]
        return kind.model_validate(value)

    def bytes_of_first(self, content: bytes, size: int) -> bytes:
        content = self._agreement.all(self._rank, content)[0]
        assert len(content) == size
        return content


def test_the_other_machine_has_the_files_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New and changed ones in pieces, without what belongs to one machine; others are deleted."""
    monkeypatch.setattr(folder_copy, "_PIECE_BYTES", 4)
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
    agreement = Agreement()
    ranks = [Rank(agreement, number) for number in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        copies = zip(ranks, (first, first, other), strict=True)
        for done in [pool.submit(copy_from_first, *each) for each in copies]:
            done.result(60)
    files = {f.relative_to(other).as_posix() for f in other.rglob("*") if f.is_file()}
    assert files == {
        *("last.safetensors", "best-4/model.json", "same", "empty", "halvings.json"),
        *("job.json", "node-1/job.json"),
    }
    assert (other / "last.safetensors").read_text() == "a newer state"
    assert (other / "job.json").read_text() == "of the other"
    assert (other / "same").stat().st_mtime_ns == unchanged
