"""One of several processes that train together, with gradients summed by torch.distributed.

Gradients are summed in one buffer after the last micro-batch. torch's DistributedDataParallel is
not used: it changes the order of its sums after the first step, so a resumed training of three or
more processes would get other bits; it sums while gradients are computed, so the others would wait
forever for a process that ran out of memory; and it takes the mean over the processes, which is not
the mean over the images if their parts differ in size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from safetensors import torch as safetensors
from torch import distributed, nn
from torch.distributed.distributed_c10d import Store
from torch.nn.modules.batchnorm import _BatchNorm

from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.errors import RunError
from patchline.pipeline.training.processes.batch_parts import BatchPart, DividedOrder
from patchline.pipeline.training.processes.process_group import Keys, ProcessGroup, Value
from patchline.pipeline.training.train_state import TrainState

LEADER = 0
_STEP_TIMEOUT = timedelta(minutes=30)
"""Longest wait for the gradients of another process."""
_LEADER_TIMEOUT = timedelta(days=1)
"""Longest wait for an announcement of the leader, which may be validating."""
_NUMBERS = "progress"


class Kind(IntEnum):
    """What the leader announces."""

    STATE = 0
    GRADIENTS = 1
    UPDATE = 2
    END = 3


class Announcement(NamedTuple):
    """What the other processes do next."""

    kind: Kind
    value: float = 0.0
    """The progress for gradients, the learning rate for an update, the bytes of a state."""
    parts: int = 0
    """Number of micro-batches, for gradients."""


class SeveralProcesses(ProcessGroup):
    """This process's membership in the group.

    Args:
        rank: of this process; 0 leads.
        size: number of processes.
        device: `cpu` or `cuda`.
        store: through which the processes find each other.
    """

    def __init__(self, rank: int, size: int, device: str, store: Store) -> None:
        self.rank, self.size = rank, size
        self._all_threads = torch.get_num_threads()
        self._on_cuda = device == "cuda"
        self.devices = size if self._on_cuda else 1
        self._order: DividedOrder | None = None
        self.shared_batch_norm = False
        """Whether batch norm sees the images of all processes."""
        if self._on_cuda:
            torch.cuda.set_device(rank)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self._on_cuda else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=_STEP_TIMEOUT,
        )
        self._announcements: Any = distributed.new_group(backend="gloo", timeout=_LEADER_TIMEOUT)

    # -- set-up --------------------------------------------------------------------------------

    def own_threads(self, requested: int | None) -> int:
        """Return this process's part of the torch threads, at least one."""
        self._all_threads = requested or self._all_threads
        return max(1, self._all_threads // self.size)

    def own_device(self, name: str) -> torch.device:
        """Return this process's device of a kind: each has a GPU of its own."""
        return torch.device(name, self.rank) if self._on_cuda else torch.device(name)

    def synchronised(self, model: nn.Module) -> nn.Module:
        """Return the model with batch norm over the images of all processes, on GPUs."""
        self.shared_batch_norm = self._on_cuda and has_batch_norm(model)
        if not self.shared_batch_norm:
            return model
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        return converted

    def warning(self, model: nn.Module) -> str:
        """Return a sentence if batch norm is not synchronised; otherwise nothing."""
        if self.shared_batch_norm or not has_batch_norm(model):
            return ""
        return (
            f"Batch norm is not synchronised on a CPU: each of the {self.size} processes "
            "normalises its own part of a batch."
        )

    def divide(self, order: BatchOrder, *, mixing: bool) -> Iterable[Keys]:
        """Return the images of each batch that this process loads."""
        self._order = DividedOrder(order, self.rank, self.size, mixing=mixing)
        return self._order

    def part(self, step: int, images: int) -> BatchPart:
        """Return the part of a step's batch, once the order is divided."""
        return self._order.at(step) if self._order else super().part(step, images)

    def from_leader(self, kind: type[Value], compute: Callable[[], Value]) -> Value:
        """Return what the leader computes, in every process."""
        text = compute().model_dump_json().encode() if self.rank == LEADER else b""
        size = torch.tensor(len(text))
        distributed.broadcast(size, LEADER, group=self._announcements)
        packed = torch.zeros(int(size), dtype=torch.uint8)
        if text:
            packed = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        distributed.broadcast(packed, LEADER, group=self._announcements)
        return kind.model_validate_json(packed.numpy().tobytes())

    # -- the leader's announcements ------------------------------------------------------------

    def announce_gradients(self, progress: float, parts: int) -> None:
        """Let the others compute gradients: at a progress, in a number of micro-batches."""
        self._announce(Announcement(Kind.GRADIENTS, progress, parts))

    def announce_update(self, learning_rate: float) -> None:
        """Let the others update their weights."""
        self._announce(Announcement(Kind.UPDATE, learning_rate))

    def announce_state(self, state: TrainState) -> None:
        """Let the others take the leader's state."""
        packed = torch.frombuffer(bytearray(_packed(state)), dtype=torch.uint8)
        self._announce(Announcement(Kind.STATE, len(packed)))
        distributed.broadcast(packed, LEADER)

    def announce_end(self) -> None:
        """Let the others end."""
        self._announce(Announcement(Kind.END))

    def announcement(self) -> Announcement:
        """Wait for what the leader announces next."""
        values_3 = torch.zeros(3, dtype=torch.float64)
        distributed.broadcast(values_3, LEADER, group=self._announcements)
        kind, value, parts = values_3.tolist()
        return Announcement(Kind(int(kind)), value, int(parts))

    def take_state(self, state: TrainState, size: int) -> None:
        """Take the leader's state, which it has announced with its number of bytes."""
        packed = torch.empty(size, dtype=torch.uint8)
        distributed.broadcast(packed, LEADER)
        tensors = safetensors.load(packed.numpy().tobytes())
        numbers = json.loads(tensors.pop(_NUMBERS).numpy().tobytes())
        state.restore(tensors, numbers)

    def _announce(self, said: Announcement) -> None:
        values_3 = torch.tensor(said, dtype=torch.float64)
        distributed.broadcast(values_3, LEADER, group=self._announcements)

    # -- one step ------------------------------------------------------------------------------

    @contextmanager
    def sharing_memory_errors(self) -> Iterator[None]:
        """Raise torch.OutOfMemoryError in all processes if the block raises it in one.

        Raises:
            RunError: if the others wait for the images of this process's batch norm.
        """
        raised: torch.OutOfMemoryError | None = None
        try:
            yield
        except torch.OutOfMemoryError as error:
            if self.shared_batch_norm:
                raise RunError(
                    "The device is out of memory, and batch norm is synchronised, so the batch "
                    "cannot be divided during training. Increase training.accumulation, or "
                    "choose a smaller model or image size."
                ) from error
            raised = error
        failed = torch.tensor(float(raised is not None))
        distributed.all_reduce(failed)
        if failed:
            raise raised or torch.OutOfMemoryError("Another process is out of memory.")

    def sum_up(
        self, model: nn.Module, loss: torch.Tensor, correct: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum the gradients, the loss and the correct images of all processes' parts."""
        trained = [each for each in model.parameters() if each.requires_grad]
        reached = torch.tensor([float(each.grad is not None) for each in trained])
        distributed.all_reduce(reached)  # a layer without a gradient in every process has none
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
        values = [*gradients, loss, correct]
        sums = torch.cat([each.detach().reshape(-1).float() for each in values])
        distributed.all_reduce(sums)
        *summed, loss_1, correct_1 = torch.split(sums, [each.numel() for each in values])
        for parameter, gradient, processes in zip(trained, summed, reached.tolist(), strict=True):
            parameter.grad = (
                gradient.view(parameter.shape).to(parameter.dtype) if processes else None
            )
        return loss_1[0], correct_1[0].to(correct.dtype)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the threads of all processes inside the block, while the others wait."""
        own = torch.get_num_threads()
        torch.set_num_threads(self._all_threads)
        try:
            yield
        finally:
            torch.set_num_threads(own)


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model has batch norm, whose result depends on the whole batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _packed(state: TrainState) -> bytes:
    tensors = {
        name: each.detach().to("cpu", copy=True).contiguous()
        for name, each in state.tensors().items()
    }
    numbers = json.dumps(state.numbers()).encode()
    tensors[_NUMBERS] = torch.frombuffer(bytearray(numbers), dtype=torch.uint8)
    return safetensors.save(tensors)
