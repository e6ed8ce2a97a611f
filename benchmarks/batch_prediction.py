"""Images/s of Patchline's batch prediction against a plain torch loop, in turn, in the same run.

python -m benchmarks.batch_prediction [SIZE [ROUNDS]]

Both read 3,000 photo-like JPEG files of 500x375 pixels and predict them with the same small `vit`
for 64-pixel images with random weights. The plain loop: PIL, torchvision's transforms, a DataLoader
with batches of 64 and two workers, the torch model in inference mode. Each side is measured whole,
from the folder to the probabilities; Patchline's includes counting the files and writing the table.
Processor time, of all threads and processes together, says the same on a machine that is busy.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.measured_runs import machine
from benchmarks.results import Value, record
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel, export_onnx
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.batch_prediction import predict_images
from patchline.plugin_api import ImageSpec

IMAGES, WIDTH, HEIGHT, SIDE, CLASSES = 3_000, 500, 375, 64, 10
BATCH, WORKERS = 64, 2


def main() -> None:
    """Print a line a round, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", nargs="?", default="micro")
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    given = parser.parse_args()
    size, rounds = given.size, given.rounds
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kilobytes = write_photos(folder / "photos") / IMAGES / 1000
        model, packaged = small_model(folder, size)
        print(
            f"{IMAGES} JPEG files of {WIDTH}x{HEIGHT}, {kilobytes:.0f} kB each; vit {size}, patch 8"
        )

        def ours() -> None:
            predict_images(packaged, "benchmark", [folder / "photos"], folder / "out.parquet")

        def plain() -> None:
            _plain_loop(model, folder / "photos")

        rates: dict[str, list[float]] = {"Patchline": [], "plain loop": []}
        processor: dict[str, list[float]] = {"Patchline": [], "plain loop": []}
        for number in range(rounds):
            for name, predict in (("Patchline", ours), ("plain loop", plain)):
                per_second, milliseconds = _measure(predict)
                rates[name].append(per_second)
                processor[name].append(milliseconds)
                print(
                    f"round {number}: {name} {per_second:.0f} images/s, "
                    f"{milliseconds:.2f} ms of processor time an image",
                    flush=True,
                )
    record(
        "batch_prediction",
        *(
            value
            for name in rates
            for value in (
                Value.median(name, rates[name], "images/s"),
                Value.median(f"{name}, processor time for an image", processor[name], "ms"),
            )
        ),
    )
    medians = {name: statistics.median(measured) for name, measured in rates.items()}
    print(
        f"median of {rounds}: Patchline {medians['Patchline']:.0f} images/s, plain loop "
        f"{medians['plain loop']:.0f} images/s, "
        f"ratio {medians['Patchline'] / medians['plain loop']:.2f}"
    )


def _measure(predict: Callable[[], None]) -> tuple[float, float]:
    """Return images/s, and milliseconds of processor time for an image."""
    began, processor = time.perf_counter(), _processor_seconds()
    predict()
    seconds = time.perf_counter() - began
    return IMAGES / seconds, 1000 * (_processor_seconds() - processor) / IMAGES


def _processor_seconds() -> float:
    """Return what this process and the workers that it has ended have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def write_photos(folder: Path) -> int:
    """Write images with structure at all sizes and a little noise; return their bytes."""
    folder.mkdir()
    written = 0
    for number in range(IMAGES):
        generator = np.random.default_rng(number)
        photo = np.full((HEIGHT, WIDTH, 3), 120, np.float32)
        for cells, contrast in ((6, 60), (24, 40), (94, 25)):
            noise = generator.normal(0, contrast, (cells, cells * 4 // 3, 3)).astype(np.float32)
            photo += cv2.resize(noise, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        photo += generator.normal(0, 4, photo.shape)
        file = folder / f"{number:05d}.jpg"
        Image.fromarray(np.clip(photo, 0, 255).astype(np.uint8)).save(file, quality=90)
        written += file.stat().st_size
    return written


def small_model(folder: Path, size: str) -> tuple[nn.Module, PackagedModel]:
    """Write a model with random weights and its package, and return both."""
    torch.manual_seed(0)
    given = {"name": "vit", "size": size, "patch_embedding": {"name": "conv", "patch_size": 8}}
    choice = ModelChoice.model_validate(given)
    image = ImageSpec(
        channels=3, height=SIDE, width=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
    )
    model = build_model(choice, image, CLASSES).eval()
    classes = tuple(f"class {number}" for number in range(CLASSES))
    save_model(
        folder, model, ModelDescription(model=choice, plugins=(), classes=classes, image=image)
    )
    export_onnx(ProbabilityModel(model, image).eval(), folder / "model.onnx")
    return model, PackagedModel(folder / "model.onnx", folder / "model.json")


class _Photos(Dataset[torch.Tensor]):
    """The files of a folder, decoded with PIL and transformed with torchvision."""

    def __init__(self, folder: Path) -> None:
        from torchvision import transforms

        self.files = sorted(folder.iterdir())
        self.transform: Any = transforms.Compose(
            [
                transforms.Resize(SIDE),
                transforms.CenterCrop(SIDE),
                transforms.ToTensor(),
                transforms.Normalize((0.5,) * 3, (0.25,) * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.files[index]) as opened:
            transformed: torch.Tensor = self.transform(opened.convert("RGB"))
        return transformed


@torch.inference_mode()
def _plain_loop(model: nn.Module, folder: Path) -> torch.Tensor:
    loader = DataLoader(_Photos(folder), batch_size=BATCH, num_workers=WORKERS)
    return torch.cat([torch.softmax(model(images_BCHW), dim=1) for images_BCHW in loader])


if __name__ == "__main__":
    main()
