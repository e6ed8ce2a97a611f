"""What a machine decides in a training run, and who looks at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.machine import (
    MODULE,
    Machine,
    cached_machine,
    choose_device,
    detect_machine,
)
from patchline.pipeline.workers import worker_start

LAPTOP = Machine(cpu_capability="AVX2", threads=4, devices={"cpu": "cpu"})
SERVER = LAPTOP.model_copy(update={"devices": {"cpu": "cpu", "cuda": "NVIDIA H200"}})


@pytest.fixture(autouse=True)
def _fresh_look() -> Iterator[None]:
    """Let every test query the machine again."""
    cached_machine.cache_clear()
    yield
    cached_machine.cache_clear()


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_an_absent_device_is_refused(name: str) -> None:
    """The error names the device that was asked for and those that are there."""
    config = TrainingConfig.model_validate({"device": name})
    sentence = rf"^training\.device is '{name}', but this machine has cpu\. Choose one of these\.$"
    with pytest.raises(ConfigError, match=sentence):
        choose_device(config, LAPTOP)


def test_auto_takes_a_gpu_that_is_there() -> None:
    """Without a wish, a CUDA device is taken if there is one, else the CPU."""
    assert choose_device(TrainingConfig(), SERVER) == "cuda"
    assert choose_device(TrainingConfig(), LAPTOP) == "cpu"
    assert choose_device(TrainingConfig(device="cpu"), SERVER) == "cpu"


def test_a_look_finds_what_torch_has() -> None:
    """Threads, vector instructions and devices are torch's own."""
    machine = detect_machine()
    assert machine.threads == torch.get_num_threads()
    assert machine.cpu_capability == torch.backends.cpu.get_cpu_capability()
    assert ("cuda" in machine.devices) == torch.cuda.is_available()
    assert ("mps" in machine.devices) == torch.backends.mps.is_available()


def test_a_prepared_training_process_sees_the_same() -> None:
    """Its introduction, which spares the parent torch, says what the parent would find."""
    with worker_start.prepared_workers():
        worker_start.prepare(MODULE)
        told = worker_start.introduction(MODULE)
        assert Machine.model_validate_json(told) == cached_machine()
    mine = detect_machine().model_copy(
        update={"threads": cached_machine().threads}
    )  # other tests set theirs
    assert cached_machine() == mine
