"""A training step on a GPU: what feeding it with images costs, and its share of the GPU's peak.

    python -m benchmarks.gpu [--images 10240] [--seconds 15] [--rounds 3] [--eager]

A ViT-S/16 trains on batches of 256 images of 224 pixels in bfloat16 with the augmentation
`standard`, in turn with images that the GPU keeps, with images that are copied ahead from a store,
and with one batch that is augmented and on the GPU already. The store holds random images.

A ViT-B/16 then trains on the one batch. Its share of the dense peak in bfloat16 counts three
forward passes for a step, of NVIDIA's number for the GPU if that is known here, and of the rate of
a large matrix product.

The models are compiled, as in long training runs, unless --eager. It takes about five minutes.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.measured_runs import machine
from benchmarks.results import Value, record
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.loader import Batch, Feed, TrainingImages, training_batches
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.training.device import make_repeatable, wait_for
from patchline.pipeline.training.speed.training_speed import forward_flops, matrix_product_rate
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.train_step import TrainStep, first_step
from patchline.plugin_api import ImageSpec

BATCH, SIDE, CLASSES = 256, 224, 1000
IMAGE = ImageSpec(
    channels=3, height=SIDE, width=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
)
_PASSES = 3
_PLANNED_STEPS = 100_000
_TOGETHER = 10
"""Steps that are started before the clock is read."""
_PEAKS = {
    "A100": 312e12, "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12,
    "L40S": 362e12, "RTX 4090": 165e12,
}  # fmt: skip
"""Dense floating-point operations per second in bfloat16, from NVIDIA's data sheets."""


def make_step(size: str, device: torch.device, *, is_compiled: bool) -> TrainStep:
    """Return the first step of a ViT with patches of 16 pixels."""
    config = config_files.validate_config(
        {
            "augmentation": {"name": "standard", "horizontal_flip": True},
            "model": {
                "name": "vit",
                "size": size,
                "patch_embedding": {"name": "conv", "patch_size": 16},
            },
            "training": {"batch_size": BATCH, "precision": "bfloat16"},
        }
    )
    model = build_model(config.model, IMAGE, CLASSES).to(device).train()
    plan = StepPlan.of_steps(_PLANNED_STEPS)
    step = first_step(config, IMAGE, CLASSES, model, "bfloat16", plan)
    if is_compiled:
        step.state.model.compile(dynamic=False)
    return step


def write_store(folder: Path, step: TrainStep, images: int) -> TrainingImages:
    """Write a store of random images, and return it with random labels."""
    generator = np.random.default_rng(0)
    stored = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=(images, SIDE, SIDE, 3)
    )
    for start in range(0, images, BATCH):
        part = stored[start : start + BATCH]
        part[:] = generator.integers(0, 256, part.shape, np.uint8)
    return TrainingImages(
        store=folder,
        rows=np.arange(images),
        targets=generator.integers(0, CLASSES, images),
        augmentation=step.config.augmentation,
        image=IMAGE,
        seed=0,
    )


def rate(step: TrainStep, batches: Iterator[Batch], warm_up: int, seconds: float) -> float:
    """Return the images per second of steps, after others that do not count."""

    def do(steps: int) -> None:
        for batch in itertools.islice(batches, steps):
            step.update(step.compute_gradients(batch))
        wait_for(step.device)

    do(warm_up)
    began, images = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        do(_TOGETHER)
        images += _TOGETHER * BATCH
    return images / (time.perf_counter() - began)


def compare_feeds(step: TrainStep, given: argparse.Namespace) -> None:
    """Print and record the rates by where the images come from."""
    device, name = step.device, torch.cuda.get_device_name()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        source = write_store(Path(folder), step, given.images)
        order = BatchOrder(source.rows, BATCH, 0, 0)

        def batches(*, keeps: bool) -> Iterator[Batch]:
            feed = Feed(ahead=2, augments=True, keeps=keeps)
            return training_batches(order, source, 0, device, feed=feed)

        one = next(batches(keeps=False))
        for _ in range(given.rounds):
            sides = {
                "one batch on the GPU": itertools.repeat(one),
                "images kept on the GPU": batches(keeps=True),
                "images copied ahead": batches(keeps=False),
            }
            for side, each in sides.items():
                measured = rate(step, each, order.steps_per_epoch, given.seconds)
                rates.setdefault(side, []).append(measured)
                print(f"  {side}: {measured:,.0f} images/s", flush=True)
    whole = "compiled, " * (not given.eager) + name
    record(
        "gpu_feeding",
        *(
            Value.median(f"ViT-S/16, {side} ({whole})", each, "images/s")
            for side, each in rates.items()
        ),
    )


def measure_share(step: TrainStep, given: argparse.Namespace) -> None:
    """Print and record the share of the peak that a step on one batch reaches."""
    device, name = step.device, torch.cuda.get_device_name()
    images_BHWC = torch.randint(0, 256, (BATCH, SIDE, SIDE, 3), dtype=torch.uint8, device=device)
    labels_B = torch.randint(0, CLASSES, (BATCH,), device=device)
    batches = itertools.repeat((images_BHWC, labels_B))
    flops = _PASSES * forward_flops(step.state.average.model, IMAGE, device)
    rates = [rate(step, batches, _TOGETHER, given.seconds) for _ in range(given.rounds)]
    whole = "compiled, " * (not given.eager) + name
    values = [Value.median(f"ViT-B/16, one batch on the GPU ({whole})", rates, "images/s")]
    peaks = {"the rate of a matrix product": matrix_product_rate(device, "bfloat16")}
    peaks |= {f"{peak / 1e12:.0f} TFLOP/s": peak for peak in [find_peak(name)] if peak}
    for what, peak in peaks.items():
        shares = [100 * flops * each / peak for each in rates]
        values.append(Value.median(f"ViT-B/16, of {what} ({whole})", shares, "%"))
    for value in values:
        print(f"  {value.name}: {value.value:,.1f} {value.unit}")
    record("gpu_share", *values)


def find_peak(name: str) -> float:
    """Return the peak of a GPU in bfloat16 by its product name; 0 if it is not known here."""
    return next((peak for part, peak in _PEAKS.items() if part in name), 0.0)


def main() -> None:
    """Measure both, on the first GPU."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=40 * BATCH, help="in the store")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="do not compile the models")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device. Run this on a machine with an NVIDIA GPU.")
    quiet_libraries.apply()
    device = torch.device("cuda", 0)
    make_repeatable(None, device)
    print(f"{machine()}; {torch.cuda.get_device_name()}", flush=True)
    compare_feeds(make_step("s", device, is_compiled=not given.eager), given)
    measure_share(make_step("b", device, is_compiled=not given.eager), given)


if __name__ == "__main__":
    main()
