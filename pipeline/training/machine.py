"""What the machine decides about training: the device, the number of threads, the CPU."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Resources

_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)[a-z]?")
MODULE = "patchline.pipeline.training"
"""Module of the training process."""
MEMBER_MODULE = "patchline.pipeline.training.processes.member"
"""Module that other machines run if the processes of the training are spread over several."""


class Machine(FrozenModel):
    """The machine as seen by torch."""

    cpu_capability: str
    """The CPU's vector instructions that torch uses."""
    threads: int
    """Torch's default number of threads."""
    devices: dict[str, str]
    """The available devices: their names in a config, with their product names."""
    gpus: int = 0
    """Number of CUDA devices."""
    unusable_gpu: str = ""
    """Why the GPU of this machine cannot be used; empty if there is none or it can."""


def detect_machine() -> Machine:
    """Query torch in this process."""
    import torch

    devices, unusable = {"cpu": "cpu"}, ""
    if torch.cuda.is_available():
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
        architectures = torch.cuda.get_arch_list()
        if has_kernels(capability, architectures):
            devices["cuda"] = name
        else:
            major, minor = capability
            unusable = (
                f"torch {torch.__version__} has no kernels for {name}, which is of compute "
                f"capability {major}.{minor}, but only for {', '.join(architectures)}"
            )
    if torch.backends.mps.is_available():
        devices["mps"] = "mps"
    return Machine(
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        devices=devices,
        gpus=torch.cuda.device_count() if "cuda" in devices else 0,
        unusable_gpu=unusable,
    )


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return whether a build of torch runs on a GPU.

    Machine code (sm_86) runs on GPUs of the same major version whose minor version is not lower;
    intermediate code (compute_86) on all GPUs that are not older.

    Args:
        capability: compute capability of the GPU, such as (8, 6).
        architectures: the architectures that torch is built for, as `torch.cuda.get_arch_list`
            returns them.
    """
    known = [found for each in architectures if (found := _ARCHITECTURE.fullmatch(each))]
    if not known:  # a build for AMD's GPUs names others, which only torch itself can compare
        return True
    for found in known:
        version = (int(found["major"]), int(found["minor"]))
        is_of_major = version[0] == capability[0]
        if version <= capability and (is_of_major or found["kind"] == "compute"):
            return True
    return False


@functools.cache
def detect_cached_machine() -> Machine:
    """Return what a prewarmed training process has seen, so that this one needs no torch."""
    launcher = worker_start.current_launcher()
    introduction = launcher.introduction(MODULE, Resources.for_device("auto"))
    machine = Machine.model_validate_json(introduction) if introduction else detect_machine()
    return machine.model_copy(update={"gpus": machine.gpus * launcher.machines})


def resources_of(config: TrainingConfig) -> Resources:
    """Return what the launcher of a run reserves for its training process or processes."""
    return Resources.for_device(config.device, config.processes)


def choose_device(config: TrainingConfig, machine: Machine, machines: int = 1) -> str:
    """Return the name of the device to train on.

    Args:
        config: the training's settings, which may name the device.
        machine: the machine to train on.
        machines: number of such machines over which the processes are spread.

    Raises:
        ConfigError: if the machine does not have the requested device, or has too few for the
            processes.
    """
    name = config.device
    if name == "auto":
        name = "cuda" if "cuda" in machine.devices else "cpu"
    if name == "cuda" and machine.unusable_gpu:
        raise ConfigError(
            f"training.device is 'cuda', but {machine.unusable_gpu}. Install a build of torch for "
            "this GPU, or set training.device to cpu."
        )
    if name not in machine.devices:
        raise ConfigError(
            f"training.device is '{name}', but this machine has {', '.join(machine.devices)}. "
            "Choose one of these."
        )
    gpus = machine.gpus * machines
    if config.processes > 1 and name != "cpu" and config.processes > gpus:
        have = "this machine has" if machines == 1 else f"{machines} nodes have"
        raise ConfigError(
            f"training.processes is {config.processes}, but each process needs a CUDA device of "
            f"its own, and {have} {gpus}. Lower training.processes (`patchline "
            f"run --resume RUN --training.processes {max(1, gpus)}` continues an interrupted run "
            "with fewer), or set training.device to cpu."
        )
    return name
