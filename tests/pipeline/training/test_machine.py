"""What a machine decides in a training run, and who looks at it."""

from __future__ import annotations

import re
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
    has_kernels,
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


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 6), ("sm_80", "sm_90"), True),  # machine code of a lower minor version
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90", "compute_90"), True),  # compiled when it is loaded
        ((12, 0), ("sm_90a", "sm_100f"), False),
        ((7, 5), ("sm_75", "sm_120"), True),
        ((7, 0), ("sm_75", "sm_80", "compute_120"), False),  # V100
        ((6, 0), ("sm_75",), False),  # P100
        ((9, 0), ("gfx90a", "gfx942"), True),  # not CUDA, so nothing is known against it
    ],
)
def test_machine_code_runs_on_newer_gpus_of_its_generation(
    capability: tuple[int, int], architectures: tuple[str, ...], *, runs: bool
) -> None:
    """And intermediate code on all newer ones; other GPUs have no kernels."""
    assert has_kernels(capability, architectures) == runs


def test_a_gpu_without_kernels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the CPU trains; who asks for the GPU learns what it lacks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla P100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    machine = detect_machine()
    assert machine.devices.keys() == {"cpu"}
    assert choose_device(TrainingConfig(), machine) == "cpu"
    sentence = (
        rf"^training\.device is 'cuda', but torch {re.escape(torch.__version__)} has no kernels "
        r"for Tesla P100, which is of compute capability 6\.0, but only for sm_75, sm_90\. Install "
    )
    with pytest.raises(ConfigError, match=sentence):
        choose_device(TrainingConfig(device="cuda"), machine)


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
