"""Training speed: beside timm, by precision, and of several processes.

    python -m benchmarks.training_speed timm [--steps 8] [--rounds 3] [--compile] [--precision auto]
    python -m benchmarks.training_speed profile [--precision auto]
    python -m benchmarks.training_speed precision
    python -m benchmarks.training_speed processes [SECONDS [ROUNDS]] [--threads N] [--batch-size N]

`timm` compares with timm's VisionTransformer in a plain PyTorch loop, on generated images. Both
sides train a ViT with embedding dimension 192, depth 9, 3 heads and patches of 4 on batches of 128
images of 32 pixels with AdamW, each in processes of its own, in turn. Patchline's side is its
training process, from reading the images to the event of each step: standard augmentation, moving
average, finite check, progress events. timm's side is forward, backward and update on batches that
are in memory already, eager in float32, with autocast where the machine computes bfloat16, and with
--compile also compiled; its fastest mode counts. The rate of a side is that of its median step.

`profile` prints where the time of such a step goes: torch's profiler, by kind of operation.

`precision` prints the images/s in float32 and in bfloat16 of small and larger models on the
built-in digits.

`processes` prints the images/s and the CPU time of 1, 2 and 4 processes that share the threads, in
turn: such a ViT in float32 on the built-in digits at 32 pixels. CPU time depends less on what else
the machine does; it includes waiting for another process where that is done by polling.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from PIL import Image
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from benchmarks.measured_runs import machine, measure_run
from benchmarks.results import Value, record
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.device import make_repeatable, wait_for
from patchline.pipeline.training.job import TRAINING, TrainingJob
from patchline.pipeline.training.machine import choose_device, detect_machine
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.speed.precision import Chooser, certain_reason
from patchline.pipeline.training.speed.training_speed import forward_flops, matrix_product_rate
from patchline.pipeline.training.speed.trial_steps import AUGMENTATION, TrialSettings, trial_steps
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_start import environment

BATCH, SIDE, CLASSES = 128, 32, 10
_DIM, _DEPTH, _HEADS, _PATCH = 192, 9, 3, 4
_WARM_UP = 2
"""Steps that do not count."""
_FEWEST_REPORTS = 4
_FEW = 20
"""Images of validation and test."""
_PASSES = 3


class Steps(NamedTuple):
    """What each step took."""

    seconds: list[float]
    cpu_seconds: list[float]
    """Of all threads; depends less on what else the machine does."""

    def __add__(self, more: tuple[Any, ...]) -> Steps:
        """Return these steps and more."""
        seconds, cpu_seconds = more
        return Steps([*self.seconds, *seconds], [*self.cpu_seconds, *cpu_seconds])


def compare_with_timm(given: argparse.Namespace) -> None:
    """Print the rates of both sides and their ratio."""
    _say_machine()
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        config = settings(Path(folder), given.steps + _WARM_UP, given.precision)
        compare(make_job(config, Path(folder)), given)


def _say_machine() -> None:
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}", flush=True)


def compare(job: TrainingJob, given: argparse.Namespace) -> None:
    """Measure both sides in turn, and print a line for each mode."""
    device = torch.device(choose_device(job.config.training, detect_machine()))
    modes = ["float32"]
    if given.precision != "float32" and not certain_reason(device):
        modes.append("bfloat16")
    if given.compile:
        modes += [f"{mode} compiled" for mode in modes]
    taken = {name: Steps([], []) for name in ("patchline", *modes)}
    rates = {"float32": 0.0, "bfloat16": 0.0}
    for number in range(given.rounds):
        precision, steps = our_steps(job, number)
        _print_round("patchline", steps)
        taken["patchline"] += steps
        for mode in modes:
            steps = _peer_process(mode, given.steps)
            _print_round(mode, steps)
            taken[mode] += steps
        for name in {precision, *(mode.split()[0] for mode in modes)}:
            rates[name] = max(rates[name], matrix_product_rate(device, name))
    model = build_model(job.config.model, job.image, CLASSES)
    flops = _PASSES * forward_flops(model, job.image, torch.device("cpu"))
    for name, steps in taken.items():
        kind = precision if name == "patchline" else name.split()[0]
        who = f"patchline {precision}" if name == "patchline" else f"timm {name}"
        speed = BATCH / statistics.median(steps.seconds)
        print(
            f"{who}: {speed:.1f} images/s (fastest step {BATCH / min(steps.seconds):.1f}), "
            f"{flops * speed / rates[kind]:.0%} of {rates[kind] / 1e9:.0f} GFLOP/s; "
            f"{1000 * statistics.median(steps.cpu_seconds) / BATCH:.1f} ms of CPU time an image"
        )
    print(f"ratio {_ratios(taken, modes)}; load {os.getloadavg()[0]:.1f}")
    sides = {f"Patchline, {precision}": taken["patchline"]}
    sides |= {f"timm, {mode}": taken[mode] for mode in modes}
    record(
        "training_step" if given.precision == "auto" else f"training_step_{given.precision}",
        *(
            Value.median(name, [BATCH / each for each in steps.seconds], "images/s")
            for name, steps in sides.items()
        ),
    )


def _print_round(name: str, steps: Steps) -> None:
    seconds = " ".join(f"{each:.2f}" for each in steps.seconds)
    cpu = " ".join(f"{each:.2f}" for each in steps.cpu_seconds)
    print(f"  {name}: {seconds} s; CPU time {cpu} s", flush=True)


def _ratios(taken: dict[str, Steps], modes: list[str]) -> str:
    """Return how many times faster Patchline is than timm's fastest mode."""
    ours = taken["patchline"]
    peer = min((taken[mode] for mode in modes), key=lambda steps: statistics.median(steps.seconds))
    median = statistics.median(peer.seconds) / statistics.median(ours.seconds)
    fastest = min(peer.seconds) / min(ours.seconds)
    cpu = statistics.median(peer.cpu_seconds) / statistics.median(ours.cpu_seconds)
    count = len(ours.seconds)
    return (
        f"{median:.2f} of median steps, {fastest:.2f} of fastest, {cpu:.2f} of CPU time, n {count}"
    )


def settings(folder: Path, steps: int, precision: str) -> RunConfig:
    """Return the config of Patchline's side: one epoch of that many steps on images in a folder."""
    _write_images(folder / "images", steps * BATCH)
    embedding = {"name": "linear", "patch_size": _PATCH}
    sizes = {"embed_dim": _DIM, "depth": _DEPTH, "num_heads": _HEADS, "mlp_dim": 4 * _DIM}
    return config_files.validate_config(
        {
            "name": "speed",
            "data": {"source": "image_folder", "path": str(folder / "images"), "image_size": SIDE},
            "augmentation": {"name": "standard"},
            "model": {"name": "vit", **sizes, "patch_embedding": embedding},
            "training": {"batch_size": BATCH, "precision": precision},
            "record": {"step_plan": [[0, 0.0, steps]]},
        }
    )


def make_job(config: RunConfig, folder: Path) -> TrainingJob:
    """Read and decode the images, and return the job of a training run on them."""
    workspace = folder / "work"
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    job = job_of(config, data, prepared, folder, "benchmark")
    return job.model_copy(update={"workspace": workspace})


def our_steps(job: TrainingJob, number: int) -> tuple[str, Steps]:
    """Train in a process of its own, and return the precision and what the steps took."""
    folder = job.folder / f"training-{number}"
    seen: list[tuple[int, float, float]] = []

    def see(event: Event) -> None:
        if event["kind"] == "progress" and event["done"] >= _WARM_UP:
            seen.append((event["done"], event["time"], _cpu_seconds_of_children()))

    job = job.model_copy(update={"folder": folder})
    result = TRAINING.run(folder, job, see)
    pairs = itertools.pairwise(seen)
    seconds = [(after - began) / (done - step) for (step, began, _), (done, after, _) in pairs]
    if len(seen) < _FEWEST_REPORTS:
        raise SystemExit(
            f"A training run reports its steps every half second, and here it did so {len(seen)} "
            f"times, but {_FEWEST_REPORTS} are needed. Increase --steps."
        )
    pairs = itertools.pairwise(seen[:-1])  # the process may have ended when the last one is seen
    cpu = [(after - began) / (done - step) for (step, _, began), (done, _, after) in pairs]
    return result.precision, Steps(seconds, cpu)


def _cpu_seconds_of_children() -> float:
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def _peer_process(mode: str, steps: int) -> Steps:
    command = [sys.executable, "-m", "benchmarks.training_speed", "peer", mode]
    done = subprocess.run([*command, str(steps)], stdout=subprocess.PIPE, text=True, check=True)
    return Steps(*json.loads(done.stdout.splitlines()[-1]))


def peer_steps(mode: str, steps: int) -> Steps:
    """Train timm's model in a plain loop, and return what the steps took."""
    counted = list(itertools.islice(_plain_loop(mode), _WARM_UP, _WARM_UP + steps))
    return Steps([seconds for seconds, _ in counted], [cpu for _, cpu in counted])


def _plain_loop(mode: str) -> Iterator[tuple[float, float]]:
    """Yield the seconds and the CPU seconds of each step."""
    from timm.models.vision_transformer import VisionTransformer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model: Any = VisionTransformer(
        img_size=SIDE,
        patch_size=_PATCH,
        num_classes=CLASSES,
        embed_dim=_DIM,
        depth=_DEPTH,
        num_heads=_HEADS,
    )
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    images_BCHW = torch.randn(BATCH, 3, SIDE, SIDE, device=device)
    labels_B = torch.randint(0, CLASSES, (BATCH,), device=device)
    forward = torch.compile(model) if mode.endswith("compiled") else model
    while True:
        began, cpu_began = time.perf_counter(), time.process_time()
        with torch.autocast(device.type, torch.bfloat16, enabled=mode.startswith("bfloat16")):
            logits_BK = forward(images_BCHW)
        loss = functional.cross_entropy(logits_BK.float(), labels_B, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        wait_for(device)
        yield time.perf_counter() - began, time.process_time() - cpu_began


def _write_images(folder: Path, training: int) -> None:
    """Write random images: that many to train on, and a few of the other splits."""
    generator = np.random.default_rng(0)
    for split, count in (("train", training), ("validation", _FEW), ("test", _FEW)):
        for number in range(count):
            target = folder / split / f"class_{number % CLASSES}" / f"{number:05}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(target)


_PROFILED = 3
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


def profile_steps(given: argparse.Namespace) -> None:
    """Print the profile of a step, in the environment of a training worker."""
    if not environment().items() <= os.environ.items():
        again = [sys.executable, "-m", "benchmarks.training_speed", *sys.argv[1:]]
        subprocess.run(again, env=environment(), check=True)
        return
    _say_machine()
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        config = settings(Path(folder), _PROFILED + _WARM_UP, given.precision)
        job = make_job(config, Path(folder))
        make_repeatable(None)
        device = choose_device(config.training, detect_machine())
        print("\n".join(profile_table(job, device)))


def profile_table(job: TrainingJob, device: str) -> list[str]:
    """Return a Markdown table of the shares of a step, the largest first."""
    model = build_model(job.config.model, job.image, len(job.classes)).to(device)
    chooser = Chooser(job.config, job.image, len(job.classes), model, job.workspace)
    precision = chooser.choose().name
    batch = job.config.training.batch_size
    tried = TrialSettings(job.config, job.image, len(job.classes), precision)
    steps = trial_steps(tried, model, batch)
    next(steps)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        taken = [next(steps) for _ in range(_PROFILED)]
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        spent[kind_of(event)] += own
    whole = sum(spent.values())
    lines = [
        f"ViT step in {precision}, {batch} images, {min(taken):.2f} s, mean of {_PROFILED} steps:",
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


_SIZES = ("micro", "mini", "ti")


def compare_precisions(_: argparse.Namespace) -> None:
    """Print a line a model size."""
    _say_machine()
    for size in _SIZES:
        rates = {}
        for precision in ("float32", "bfloat16"):
            summary = measure_run(
                *("--preset", "none", "--training.time-limit", "15s", "--model.size", size),
                *("--training.precision", precision),
            )
            rates[precision] = summary["training"]["images_per_second"]
            parameters = summary["training"]["parameters"]
        print(
            f"{size}, {parameters:,} parameters: float32 {rates['float32']:.0f} images/s, "
            f"bfloat16 {rates['bfloat16']:.0f} images/s",
            flush=True,
        )


_SETTINGS: dict[str, Any] = {
    "name": "digits",
    "data": {"image_size": 32},
    "model": {"name": "vit", "embed_dim": 192, "depth": 9, "num_heads": 3},
}
_TRAINING: dict[str, Any] = {
    "batch_size": 128,
    "device": "cpu",
    "precision": "float32",
}


_PROCESSES = (1, 2, 4)
_FEWEST_MARKS = 3


class _Progress:
    """Images and CPU seconds of a training process and its children, by its progress events."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._marks: list[tuple[int, float, float]] = []

    def __call__(self, event: Event) -> None:
        """Take the time of an event."""
        if event["kind"] == "progress" and 1 < event["done"] < event["total"]:
            children = psutil.Process().children(recursive=True)
            seconds = 0.0
            for each in children:
                with contextlib.suppress(psutil.Error):  # it has ended
                    seconds += sum(each.cpu_times()[:2])
            self._marks.append((event["done"], event["time"], seconds))

    def rates(self) -> tuple[float, float]:
        """Return images per second, and CPU milliseconds per image."""
        if len(self._marks) < _FEWEST_MARKS:
            raise SystemExit("Too few steps to measure. Give more seconds, or a smaller batch.")
        (first, began, before), (last, ended, after) = self._marks[0], self._marks[-1]
        images = (last - first) * self._batch_size
        return images / (ended - began), 1000 * (after - before) / images


def compare_processes(given: argparse.Namespace) -> None:
    """Print the rates of each round, and the medians."""
    _say_machine()
    rates: dict[int, list[tuple[float, float]]] = {each: [] for each in _PROCESSES}
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        for number in range(given.rounds):
            for processes, found in rates.items():
                job = _job(Path(folder), f"{processes}-{number}", processes, given)
                progress = _Progress(job.config.training.batch_size)
                TRAINING.run(job.folder, job, progress)
                found.append(progress.rates())
                print(
                    f"{processes} x {max(1, given.threads // processes)} threads: "
                    f"{found[-1][0]:.1f} images/s, {found[-1][1]:.2f} ms of CPU time an image; "
                    f"load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    medians = {
        processes: [statistics.median(values) for values in zip(*found, strict=True)]
        for processes, found in rates.items()
    }
    for processes, (rate, cpu) in medians.items():
        print(
            f"{processes} processes: median {rate:.1f} images/s, {rate / medians[1][0]:.2f} times "
            f"one process; {cpu:.2f} ms of CPU time an image, {cpu / medians[1][1]:.2f} times"
        )


def _job(workspace: Path, name: str, processes: int, given: argparse.Namespace) -> TrainingJob:
    training = {
        **_TRAINING,
        "threads": given.threads,
        "batch_size": given.batch_size,
        "processes": processes,
        "time_limit": f"{given.seconds}s",
    }
    config = config_files.validate_config({**_SETTINGS, "training": training})
    return make_job(config, workspace).model_copy(update={"folder": workspace / name})


def main() -> None:
    """Measure what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    timm = commands.add_parser("timm")
    timm.add_argument("--steps", type=int, default=8)
    timm.add_argument("--rounds", type=int, default=3)
    timm.add_argument("--compile", action="store_true", help="also compile timm's model")
    timm.set_defaults(measure=compare_with_timm)
    profile = commands.add_parser("profile")
    profile.set_defaults(measure=profile_steps)
    for command in (timm, profile):
        command.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    commands.add_parser("precision").set_defaults(measure=compare_precisions)
    processes = commands.add_parser("processes")
    processes.add_argument("seconds", type=int, nargs="?", default=40)
    processes.add_argument("rounds", type=int, nargs="?", default=2)
    processes.add_argument("--threads", type=int, default=2, help="of all processes together")
    processes.add_argument("--batch-size", type=int, default=BATCH)
    processes.set_defaults(measure=compare_processes)
    peer = commands.add_parser("peer", help="internal: a process of timm's side")
    peer.add_argument("mode")
    peer.add_argument("steps", type=int)
    peer.set_defaults(measure=_print_peer_steps)
    given = parser.parse_args()
    quiet_libraries.apply()
    given.measure(given)


def _print_peer_steps(given: argparse.Namespace) -> None:
    print(json.dumps(peer_steps(given.mode, given.steps)))


if __name__ == "__main__":
    main()
