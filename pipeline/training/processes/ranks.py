"""The processes of a training run, its ranks, as the program sees them that each of them runs.

Every rank computes its part of each batch, and torch's DistributedDataParallel sums the gradients
while they are computed, so weights, optimizer, averages and plan are equal on all ranks. What is
decided from them is decided alike everywhere; only the clock is that of rank 0, and rank 0 alone
writes events and files. In a training run of one process, there is nothing to agree on.

Rank 0 alone writes checkpoints and weights. Where other machines do not see its folder, one rank on
each of them copies what has changed, through the connection that the ranks have anyway.

When a time limit ends the training, when to validate and when to write a checkpoint depend on the
time. Between two readings the time stands still for all ranks; they read it a few times a second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import distributed, nn
from torch.distributed.distributed_c10d import Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from patchline.pipeline.errors import WorkerError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.pipeline.workspace.files.sealed_files import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Value = TypeVar("Value", bound=FrozenModel)

_PIECE_BYTES = 64 << 20
_OF_EACH_MACHINE = ("job.json", "group.json", "events.jsonl", "worker.log", "result.json")
_SCRATCH = ("processes", "node-")


class _Listing(FrozenModel):
    """The files of the first machine, by path."""

    files: dict[str, FileDigest]


def copy_from_first(ranks: Ranks, folder: Path) -> None:
    """Let the folder of each machine hold the files of rank 0's; all ranks call this together."""
    listing = ranks.from_first(_Listing, lambda: _Listing(files=_digest_files(folder))).files
    missing = [False] * len(listing)
    if ranks.writes_files:
        own = _digest_files(folder)
        for path in own.keys() - listing.keys():
            (folder / path).unlink()
        missing = [own.get(path) != digest for path, digest in listing.items()]
    wanted = ranks.sum(torch.tensor(missing, dtype=torch.float32)).tolist()
    for (path, digest), is_wanted, is_missing in zip(listing.items(), wanted, missing, strict=True):
        if is_wanted:
            _copy(ranks, folder / path, digest.bytes, writes=is_missing)
    ranks.sum(torch.zeros(1))  # until all of them have written


def _copy(ranks: Ranks, file: Path, size: int, *, writes: bool) -> None:
    pieces = _pieces(ranks, file, size)
    if not writes:
        for _ in pieces:
            pass
        return
    make_folder(file.parent)
    with open_replacing(file) as opened:
        for piece in pieces:
            opened.write(piece)


def _pieces(ranks: Ranks, file: Path, size: int) -> Iterator[bytes]:
    """Yield the content of a file of rank 0, on all ranks."""
    with file.open("rb") if ranks.is_first else BytesIO() as opened:
        for start in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - start)
            yield ranks.bytes_of_first(opened.read(length), length)


def _digest_files(folder: Path) -> dict[str, FileDigest]:
    paths = sorted(each for each in folder.rglob("*") if each.is_file())
    own = (each.relative_to(folder) for each in paths)
    return {each.as_posix(): digest_of(folder / each) for each in own if _is_copied(each)}


def _is_copied(file: Path) -> bool:
    if file.name.startswith(".") or file.parts[0].startswith(_SCRATCH):
        return False
    return not (file.as_posix() in _OF_EACH_MACHINE or file.name.endswith(".lock"))


FIRST = 0
"""The rank whose clock counts, and which writes events and files."""
LONGEST_WAIT = timedelta(minutes=30)
"""Time to wait for another rank; a training run whose rank has stopped ends after it."""


class Place(NamedTuple):
    """Which of the ranks a process is; by default, it is the only one."""

    rank: int = FIRST
    size: int = 1
    """Number of ranks."""
    local_rank: int = 0
    """Number of this process on its machine, which is also that of its GPU."""
    local_size: int = 1
    """Number of ranks on its machine, which share its threads."""

    @classmethod
    def on_one_machine(cls, rank: int, size: int) -> Place:
        """Return the place of a rank where all are on one machine."""
        return cls(rank, size, rank, size)


class Ranks:
    """The ranks of a training run, as one of them sees them; by default, it is the only one.

    Args:
        place: this process's place among the ranks.
        device: `cpu` or `cuda`.
        store: the store through which the ranks find each other; not used by a single one.
        longest_wait: the longest time to wait for another rank.
        shares_folder: whether all ranks see the folder of the training.
    """

    def __init__(
        self,
        place: Place | None = None,
        device: str = "cpu",
        store: Store | None = None,
        longest_wait: timedelta = LONGEST_WAIT,
        *,
        shares_folder: bool = True,
    ) -> None:
        self.rank, self.size, self._gpu, self._share_threads = place or Place()
        self.is_first, self.shares_folder = self.rank == FIRST, shares_folder
        self.writes_files = self.rank >= self._share_threads and self._gpu == 0
        """Whether it writes what the first rank sends to its machine, which has its own folder."""
        self._on_cuda = device == "cuda" and self.size > 1
        self._separate_batch_norm = False
        if self.size == 1:
            return
        if self._on_cuda:
            torch.cuda.set_device(self._gpu)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self._on_cuda else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.size,
            timeout=longest_wait,
        )

    def own_threads(self, requested: int | None) -> int | None:
        """Return this rank's part of the torch threads, at least one; None for torch's default."""
        if self.size == 1:
            return requested
        return max(1, (requested or torch.get_num_threads()) // self._share_threads)

    def threads_of_machine(self, own: int) -> int:
        """Return the threads of all ranks on this machine; asked for again, each has as many."""
        return own * self._share_threads

    def own_device(self, name: str) -> torch.device:
        """Return this rank's device of a kind: each has a GPU of its own."""
        return torch.device(name, self._gpu) if self._on_cuda else torch.device(name)

    # -- the model -----------------------------------------------------------------------------

    def synchronised(self, model: nn.Module) -> nn.Module:
        """Return the model with batch norm over the images of all ranks, on GPUs."""
        has_batch_norm = any(isinstance(each, _BatchNorm) for each in model.modules())
        self._separate_batch_norm = self.size > 1 and has_batch_norm and not self._on_cuda
        if not (self._on_cuda and has_batch_norm):
            return model
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        return converted

    def replicated(self, model: nn.Module) -> nn.Module | None:
        """Return what calls the model and takes the mean of the gradients; None for a single rank.

        A model that does not fit one device would be sharded here, in place (`fully_shard`).
        """
        if self.size == 1:
            return None
        # With parameters that may be unused, torch never changes the buckets in which it sums, so
        # that the first step after a checkpoint has the bits of any other step.
        return DistributedDataParallel(
            model,
            find_unused_parameters=True,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    @staticmethod
    def accumulating(model: nn.Module) -> AbstractContextManager[None]:
        """Leave the gradients of this rank alone inside the block, because more are added."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def average_statistics(self, model: nn.Module) -> None:
        """Take the mean over the ranks of batch-norm statistics that each rank has of its part."""
        if not self._separate_batch_norm:
            return
        layers = [each for each in model.modules() if isinstance(each, _BatchNorm)]
        statistics = [each for layer in layers for each in (layer.running_mean, layer.running_var)]
        tracked = [each for each in statistics if each is not None]
        if tracked:
            mean = self.sum(torch.cat(tracked)) / self.size
            means = torch.split(mean, [len(each) for each in tracked])
            torch._foreach_copy_(tracked, list(means))

    def warning(self) -> str:
        """Return a sentence if batch norm is not synchronised; otherwise nothing."""
        if not self._separate_batch_norm:
            return ""
        return (
            f"Batch norm is not synchronised on a CPU: each of the {self.size} processes "
            "normalises its own part of a batch."
        )

    # -- agreement -----------------------------------------------------------------------------

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over the ranks, which all call this together."""
        if self.size > 1:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one shape, in their order; nothing but on rank 0.

        All ranks call this together.
        """
        if self.size == 1:
            return [values]
        parts = [torch.empty_like(values) for _ in range(self.size)] if self.is_first else None
        distributed.gather(values, parts, FIRST)
        return parts or []

    def numbers_of_first(self, *numbers: float) -> list[float]:
        """Return the numbers that rank 0 passes, on all ranks, which call this together."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        distributed.broadcast(values, FIRST)
        return values.tolist()

    def from_first(self, kind: type[Value], compute: Callable[[], Value]) -> Value:
        """Return what rank 0 computes, on all ranks, which call this together."""
        if self.size == 1:
            return compute()
        text = compute().model_dump_json().encode() if self.is_first else b""
        [size] = self.numbers_of_first(len(text))
        return kind.model_validate_json(self.bytes_of_first(text, int(size)))

    @contextmanager
    def first_before_others(self, folder: Path) -> Iterator[None]:
        """Let rank 0 run the block, then the others; they read the files that it has written.

        Args:
            folder: the folder of the training, which holds these files.
        """
        if not self.is_first:
            self._have_files_of_first(folder)
        yield
        if self.is_first:
            self._have_files_of_first(folder)

    def _have_files_of_first(self, folder: Path) -> None:
        """Wait until rank 0 calls this too, and copy its files if the folder is not shared."""
        if self.shares_folder:
            self.wait_for_first()
        else:
            copy_from_first(self, folder)

    def bytes_of_first(self, content: bytes, size: int) -> bytes:
        """Return so many bytes that rank 0 passes, on all ranks, which call this together."""
        packed = torch.zeros(size, dtype=torch.uint8)
        if self.is_first and size:
            packed = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        distributed.broadcast(packed, FIRST)
        return packed.numpy().tobytes()

    @torch.no_grad()
    def take_from_first(self, values: torch.Tensor) -> None:
        """Give a tensor the values that it has on rank 0; all ranks call this together."""
        if self.size > 1:
            sent = values.contiguous()
            distributed.broadcast(sent, FIRST)
            if sent is not values:
                values.copy_(sent)

    def wait_for_first(self) -> None:
        """Wait until rank 0 calls this too."""
        self.numbers_of_first(0)

    def share(self, count: int) -> slice:
        """Return which of so many things this rank computes; together, the ranks do each once."""
        return slice(*(count * index // self.size for index in (self.rank, self.rank + 1)))


@contextmanager
def name_stopped_ranks(longest_wait: timedelta = LONGEST_WAIT) -> Iterator[None]:
    """Say so if this rank has waited too long for another one inside the block.

    Raises:
        WorkerError: instead of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if "Timed out waiting" not in str(error):
            raise
        minutes = math.ceil(longest_wait.total_seconds() / 60)
        raise WorkerError(
            f"A training process has not responded for {minutes} minutes, so all of them were "
            "ended. Start the run again to resume training from its last checkpoint."
        ) from error


_SECONDS = 0.2
"""Time between two readings."""


class SharedClock:
    """Seconds from an arbitrary beginning; of a single rank, simply the time."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self._read = time.monotonic()
        self._step = self._next_step = 0
        self._start = self._read

    @property
    def now(self) -> float:
        """The time; with several ranks, as last read."""
        return time.monotonic() if self._ranks.size == 1 else self._read

    @property
    def elapsed(self) -> float:
        """Seconds since the first step, including earlier attempts."""
        return self.now - self._start

    def start(self, step: int, elapsed_seconds: float) -> None:
        """Read it, because an attempt begins at a step, after the seconds of earlier ones."""
        self.restart(step)
        self._start = self.now - elapsed_seconds

    def read(self) -> float:
        """Read it, on all ranks together, and return the seconds since the last reading."""
        before = self._read
        [self._read] = self._ranks.numbers_of_first(time.monotonic())
        return self._read - before

    def read_after(self, step: int) -> float:
        """Read it after a step, and decide after how many steps to read it again."""
        took, steps = self.read(), max(1, step - self._step)
        if self._ranks.size > 1:
            each = max(took / steps, 1e-9)
            self._next_step = step + max(1, min(2 * steps, int(_SECONDS / each)))
        self._step = step
        return took

    def is_due(self, step: int) -> bool:
        """Return whether to read it after a step; all ranks know it without a word."""
        return step >= self._next_step

    def restart(self, step: int) -> None:
        """Read it, on all ranks together, because training begins at a step."""
        self.read()
        self._step = self._next_step = step
