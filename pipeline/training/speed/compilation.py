"""Compile the model with `torch.compile`, where that pays and a compiler works.

A compiled model rounds differently, so whether it is compiled decides the weights and is recorded
with the result. Every shape of a batch has a graph of its own: a graph for several shapes would
depend on which of them came first, and a resumed training would not repeat it bit for bit.
"""

from __future__ import annotations

import copy
import os
import re
from dataclasses import replace

import torch
from torch import nn

from patchline.pipeline.errors import PipelineError, StorageError
from patchline.pipeline.training.config import TrainingConfig, duration_seconds
from patchline.pipeline.training.out_of_memory import RanksRestart
from patchline.pipeline.training.train_step import RollbackOnError, TrainStep
from patchline.pipeline.training.training_data import DividedOrder
from patchline.pipeline.training.validation import Validator
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.host.private_folder import private_folder

_FEWEST_STEPS, _FEWEST_SECONDS = 5_000, 1_200.0
"""Length of a training run that repays its compilation on a GPU."""
_MOST_GRAPHS = 64
_LONGEST_REASON = 200
_NO_COMPILER = re.compile(
    r"no working C\+\+ compiler|Compiler: \S+ is not found|failed to find C compiler", re.IGNORECASE
)
"""What torch and Triton say where none is installed."""
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def is_wanted(config: TrainingConfig, device: torch.device, steps: int) -> bool:
    """Return whether to compile, as set or because it pays: see the performance page.

    Args:
        config: the training's settings, which may leave the choice.
        device: the device that trains; compiling for a CPU takes longer than a usual training
            gains.
        steps: planned number of steps; that of a training run with a time limit is not known yet.
    """
    if config.compile is not None:
        return config.compile
    if device.type != "cuda":
        return False
    if config.time_limit:
        return duration_seconds(config.time_limit) >= _FEWEST_SECONDS
    return steps >= _FEWEST_STEPS


def compile_model(
    step: TrainStep, order: DividedOrder, validator: Validator, events: EventWriter
) -> bool:
    """Compile the model of a state in place, if wanted, and return whether it is compiled.

    So is its average, for validation.

    Its state dict keeps its names. Where it cannot be compiled, the reason becomes an event, and
    training runs without compilation.

    Args:
        step: what computes the gradients of the state.
        order: the order of this rank's parts of the batches, which gives their sizes.
        validator: what validates the average.
        events: gets the reason.
    """
    if not is_wanted(step.config.training, step.device, step.state.plan.last_step):
        return False
    reason = _prepare_cache() or _failure(step, order)
    if step.ranks.sum(torch.tensor(float(bool(reason)))) and not reason:
        _undo(step.state.model)
        reason = "another process could not compile it"
    if reason:
        message = f"The model is not compiled: {reason}. Training runs without compilation."
        events.write("warning", message=message)
    else:
        validator.compile(step.state.average.model)
    return not reason


def _prepare_cache() -> str:
    """Let compiled code be kept where nobody else can put any; return what prevents it.

    PyTorch's own default is a predictable name in the temporary directory, from which it loads code
    that it finds there. PyTorch writes it into the variable when it is imported.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if os.environ.get(_CACHE) not in (None, "", default_cache_dir()):
        return ""
    try:
        os.environ[_CACHE] = str(private_folder() / "torchinductor")
    except (StorageError, OSError) as error:
        return str(error).removesuffix(".")
    return ""


def _failure(step: TrainStep, order: DividedOrder) -> str:
    """Compile the model and try every shape of a batch; return what failed, or nothing."""
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    dynamo.recompile_limit = _MOST_GRAPHS
    inductor.compile_threads = 1  # in this process, so that a kill leaves no other behind
    state, model, before = step.state, step.state.model, RollbackOnError()
    before.begin(state)
    model.compile(dynamic=False)
    try:
        _try_all_shapes(step, order)
    except (PipelineError, RanksRestart):
        raise
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways
        _undo(model)
        return reason_of(error)
    finally:
        before.restore(state)  # batch norm has seen the tried images
    dynamo.suppress_errors = True  # what cannot be compiled from here on runs as it is
    return ""


def reason_of(error: Exception) -> str:
    """Return why a model could not be compiled, and what to install if that is a compiler."""
    line = " ".join(str(error).split())
    remedy = ". Install a C++ compiler, such as g++" * bool(_NO_COMPILER.search(line))
    return f"{type(error).__name__}: {line[:_LONGEST_REASON].rstrip('.')}{remedy}"


def _undo(model: nn.Module) -> None:
    model._compiled_call_impl = None  # noqa: SLF001 - there is no public way back


def _try_all_shapes(step: TrainStep, order: DividedOrder) -> None:
    """Compute gradients of black images in the shapes of all batches; the weights stay.

    If the device is out of memory, batches are divided as in a step. Each rank tries the shapes of
    its own parts, without the others.
    """
    image, whole = step.image, order.order
    last = len(whole.rows) - (whole.steps_per_epoch - 1) * whole.batch_size
    only_full = copy.copy(step.size)
    only_full.small_size = only_full.full_size
    for images in sorted({min(whole.batch_size, len(whole.rows)), last}, reverse=True):
        part = order.part_of(images)
        loaded = part.stop - part.start + part.has_image_before
        shape = (loaded, image.height, image.width, image.channels)
        targets = step.targets_of(torch.zeros(loaded, dtype=torch.int64))
        batch = torch.zeros(shape, dtype=torch.uint8), targets
        for size in {step.size.small_size: step.size, only_full.full_size: only_full}.values():
            replace(step, size=size, replica=None).compute_gradients(batch, part)
