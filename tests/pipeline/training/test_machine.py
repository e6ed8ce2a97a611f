"""What a machine decides in a training run, and how repeatably it computes."""

from __future__ import annotations

import re

import pytest
import torch

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.device import make_repeatable
from patchline.pipeline.training.machine import Machine, choose_device, detect_machine, has_kernels

LAPTOP = Machine(cpu_capability="AVX2", threads=4, devices={"cpu": "cpu"})
SERVER = LAPTOP.model_copy(update={"devices": {"cpu": "cpu", "cuda": "NVIDIA H200"}, "gpus": 2})


def test_auto_takes_a_gpu_that_is_there() -> None:
    """Without a wish, a CUDA device is taken if there is one, else the CPU."""
    assert choose_device(TrainingConfig(), SERVER) == "cuda"
    assert choose_device(TrainingConfig(), LAPTOP) == "cpu"
    assert choose_device(TrainingConfig(device="cpu", processes=3), SERVER) == "cpu"


@pytest.mark.parametrize(
    ("machine", "settings", "said"),
    [
        (LAPTOP, {"device": "cuda"}, r"^training\.device is 'cuda', but this machine has cpu\. Ch"),
        (SERVER, {"processes": 3}, r"processes is 3, .* this machine has 2\. Lower"),
    ],
)
def test_an_absent_device_is_refused(
    machine: Machine, settings: dict[str, object], said: str
) -> None:
    """The error names what was asked for and what is there; on a CPU any number is fine."""
    with pytest.raises(ConfigError, match=said):
        choose_device(TrainingConfig.model_validate(settings), machine)


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 6), ("sm_80", "sm_90"), True),  # machine code of a lower minor version
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90", "compute_90"), True),  # compiled when it is loaded
        ((12, 0), ("sm_90a", "sm_100f"), False),
        ((7, 0), ("sm_75", "sm_80", "compute_120"), False),  # V100
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
    assert choose_device(TrainingConfig(), machine) == "cpu"
    sentence = (
        rf"^training\.device is 'cuda', but torch {re.escape(torch.__version__)} has no kernels "
        r"for Tesla P100, which is of compute capability 6\.0, but only for sm_75, sm_90\. Install "
    )
    with pytest.raises(ConfigError, match=sentence):
        choose_device(TrainingConfig(device="cuda"), machine)


def test_repeatable_kernels_leave_new_tensors_unfilled() -> None:
    """Deterministic algorithms fill every empty tensor with nan unless told not to."""
    assert make_repeatable(1) == 1 == torch.get_num_threads()
    assert make_repeatable(None) == 1
    assert torch.are_deterministic_algorithms_enabled()
    torch.full((1000,), 1.0)  # its memory is what the next tensor gets
    assert not torch.empty(1000).isnan().all()
