"""Where the time of a training step goes: torch's profiler, by kind of operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile

from pipeline.models.model_building import build_model
from pipeline.training.job import TrainingJob
from pipeline.training.precision import Chooser
from pipeline.training.trial_steps import AUGMENTATION, trial_steps

_STEPS = 3
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # a kind, and beginnings of the names of an operation or of its callers; the first counts
    ("augmentation", (AUGMENTATION,)),
    ("optimizer", ("Optimizer.step",)),
    ("moving average", ("aten::_foreach_lerp", "aten::lerp")),
    ("gradient norm and clipping", ("aten::_foreach_norm", "aten::linalg_vector_norm")),
    ("attention, backward", ("ScaledDotProduct",)),
    ("attention, forward", ("aten::scaled_dot_product_attention",)),
    ("norms", ("aten::layer_norm", "aten::rms_norm", "aten::batch_norm", "NativeLayerNorm")),
    ("GELU", ("aten::gelu", "GeluBackward")),
    ("convolutions", ("aten::conv", "ConvolutionBackward")),
    ("matrix products", ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear")),
    ("copies between types and layouts", ("aten::copy_", "aten::to", "aten::contiguous")),
    ("sums of branches, biases and gradients", ("aten::add", "aten::sum")),
)
_REST = "everything else"


def profile_table(job: TrainingJob, device: str) -> list[str]:
    """Return a Markdown table of the shares of a step, the largest first."""
    model = build_model(job.config.model, job.image, len(job.classes)).to(device)
    chooser = Chooser(job.config, job.image, len(job.classes), model, job.workspace)
    precision = chooser.choose().name
    batch = job.config.training.batch_size
    steps = trial_steps(job.config, job.image, len(job.classes), model, precision, batch)
    next(steps)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        taken = [next(steps) for _ in range(_STEPS)]
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        spent[kind_of(event)] += own
    whole = sum(spent.values())
    lines = [
        f"ViT step in {precision}, {batch} images, {min(taken):.2f} s, mean of {_STEPS} steps:",
        "",
        "| part | share |",
        "|---|---:|",
    ]
    ranked = sorted(spent.items(), key=lambda item: -item[1])
    return [*lines, *(f"| {kind} | {own / whole:.1%} |" for kind, own in ranked)]


def kind_of(event: Any) -> str:
    """Return the kind of an operation, by its name or that of the nearest caller that has one."""
    callers = list(_callers(event))
    for kind, beginnings in _KINDS[:2]:  # these are made of operations of all kinds
        if any(name.startswith(beginnings) for name in callers):
            return kind
    for name in callers:
        for kind, beginnings in _KINDS:
            if name.startswith(beginnings):
                return kind
    return _REST


def _callers(event: Any) -> Iterator[str]:
    while event is not None:
        yield event.name
        event = event.cpu_parent
