"""What the machine decides about training: the device, the number of threads, the CPU."""

from __future__ import annotations

import functools

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.workers import worker_start

MODULE = "patchline.pipeline.training"
"""Of the training process."""


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


def detect_machine() -> Machine:
    """Query torch in this process."""
    import torch

    devices = {"cpu": "cpu"}
    if torch.cuda.is_available():
        devices["cuda"] = torch.cuda.get_device_name()
    if torch.backends.mps.is_available():
        devices["mps"] = "mps"
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(
        cpu_capability=capability,
        threads=torch.get_num_threads(),
        devices=devices,
        gpus=torch.cuda.device_count() if "cuda" in devices else 0,
    )


@functools.cache
def cached_machine() -> Machine:
    """Return what a prewarmed training process has seen, so that this one needs no torch."""
    introduction = worker_start.introduction(MODULE)
    return Machine.model_validate_json(introduction) if introduction else detect_machine()


def choose_device(config: TrainingConfig, machine: Machine) -> str:
    """Return the name of the device to train on.

    Raises:
        ConfigError: if the machine does not have the requested device, or has too few for the
            processes.
    """
    name = config.device
    if name == "auto":
        name = "cuda" if "cuda" in machine.devices else "cpu"
    if name not in machine.devices:
        raise ConfigError(
            f"training.device is '{name}', but this machine has {', '.join(machine.devices)}. "
            "Choose one of these."
        )
    if config.processes > 1 and name != "cpu" and config.processes > machine.gpus:
        raise ConfigError(
            f"training.processes is {config.processes}, but each process needs a CUDA device of "
            f"its own, and this machine has {machine.gpus}. Lower training.processes, or set "
            "training.device to cpu."
        )
    return name
