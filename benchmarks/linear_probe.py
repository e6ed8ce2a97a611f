"""How fast the features of a ViT-B/16 are computed and stored, and how long a head takes to fit.

    python -m benchmarks.linear_probe [IMAGES] [ROUNDS] [--precision bfloat16]

The features of random 224x224 images are computed in turn with a bare loop over the same images in
the same batches, which keeps nothing on disk, and with ONNX Runtime in batches of 16 and of 4, with
as many threads as torch (float32 only). Then heads are fitted on random features, with the whole
search for the penalty.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measured_runs import machine
from pipeline import quiet_libraries
from pipeline.config import ModelChoice
from pipeline.models.inference import normalised
from pipeline.models.model_building import build_model
from pipeline.models.onnx_export import write_onnx
from pipeline.models.onnx_session import open_session
from pipeline.plugin_api import ImageSpec
from pipeline.probing.features import features_of, seconds_per_image, suitable_batch_size
from pipeline.probing.linear_fit import fit_head
from pipeline.probing.linear_head import linear_head

CLASSES, FEATURES = 10, 768
FITS = ((80, 0), (2_000, 300), (50_000, 5_000))
"""Training and validation images."""
_IMAGE = ImageSpec(
    channels=3, height=224, width=224, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
)
_VIT = {
    "name": "vit",
    "embed_dim": FEATURES,
    "depth": 12,
    "num_heads": 12,
    "mlp_dim": 3072,
    "patch_embedding": {"name": "conv", "patch_size": 16},
}
_CPU = torch.device("cpu")
_ONNX_BATCHES = 16, 4


def main() -> None:
    """Print a line for the features, and one for each fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=int, nargs="?", default=48)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine())
    _compare_features(given.images, given.rounds, given.precision)
    for images, validation_images in FITS:
        _time_fit(images, validation_images)


def _compare_features(count: int, rounds: int, precision: str) -> None:
    model = build_model(ModelChoice.model_validate(_VIT), _IMAGE, CLASSES).eval()
    images = np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), dtype=np.uint8)
    rows = np.arange(count)
    head = linear_head(model, CLASSES, _IMAGE)
    expected = seconds_per_image(model, images, rows, _IMAGE, _CPU, precision)
    onnx = _OnnxBackbone(model)
    sizes = _ONNX_BATCHES if precision == "float32" else ()
    bare: list[float] = []
    ours: list[float] = []
    theirs: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        bare.append(_bare_loop(model, images, precision))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            features_ND = features_of(
                *(model, head, images, rows, _IMAGE, Path(folder)), device=_CPU, precision=precision
            )
            ours.append(time.perf_counter() - began)
        for size in sizes:
            theirs[size].append(onnx.seconds(images, size, features_ND))
    print(
        f"features of {count} images of 224x224, ViT-B/16, {precision}, median of {rounds} rounds: "
        f"{count / statistics.median(ours):.2f} images/s, bare loop "
        f"{count / statistics.median(bare):.2f}, ratio {_ratio(bare, ours):.3f}; measured before "
        f"on a few images: {1 / expected:.2f} images/s",
        flush=True,
    )
    for size, seconds in theirs.items():
        print(
            f"ONNX Runtime, batches of {size}, {torch.get_num_threads()} threads: "
            f"{count / statistics.median(seconds):.2f} images/s, "
            f"{_ratio(ours, seconds):.3f} times the speed of torch; "
            f"features differ by at most {onnx.difference:.1e}",
            flush=True,
        )


def _ratio(one: list[float], other: list[float]) -> float:
    """Return how many times faster the other is, as the median over the rounds."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


class _OnnxBackbone:
    """A model without its head, computed by ONNX Runtime."""

    def __init__(self, model: nn.Module) -> None:
        backbone = copy.deepcopy(model)
        backbone.head = nn.Identity()
        pixels_BCHW = torch.zeros(2, _IMAGE.channels, _IMAGE.height, _IMAGE.width)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "backbone.onnx"
            write_onnx(backbone, pixels_BCHW, file, input_name="images", output_name="features")
            self.session = open_session(file, torch.get_num_threads())
        self.difference = 0.0

    def seconds(
        self, images: np.ndarray[Any, Any], size: int, expected_ND: np.ndarray[Any, Any]
    ) -> float:
        """Compute the features, and return the seconds; note how much they differ."""
        began, batches = time.perf_counter(), []
        for start in range(0, len(images), size):
            batch_BCHW = normalised(torch.from_numpy(images[start : start + size]), _IMAGE)
            batches += self.session.run(None, {"images": batch_BCHW.numpy()})
        taken = time.perf_counter() - began
        largest = float(np.abs(np.concatenate(batches) - expected_ND).max())
        self.difference = max(self.difference, largest)
        return taken


@torch.inference_mode()
def _bare_loop(model: nn.Module, images: np.ndarray[Any, Any], precision: str) -> float:
    began = time.perf_counter()
    size = suitable_batch_size(_IMAGE, _CPU)
    for start in range(0, len(images), size):
        batch_BHWC = torch.from_numpy(images[start : start + size])
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            model(normalised(batch_BHWC, _IMAGE))
    return time.perf_counter() - began


def _time_fit(images: int, validation_images: int) -> None:
    random = np.random.default_rng(0)
    labels_N = np.arange(images + validation_images) % CLASSES
    centres_KD = 0.1 * random.normal(size=(CLASSES, FEATURES))
    mixed_DD = random.normal(size=(FEATURES, FEATURES)) * np.arange(1, FEATURES + 1) ** -0.7
    noise_ND = random.normal(size=(len(labels_N), FEATURES))
    features_ND = ((centres_KD[labels_N] + noise_ND) @ mixed_DD).astype(np.float32)
    training, validation = slice(images), slice(images, None)
    began, processor_began = time.perf_counter(), time.process_time()
    head = fit_head(
        *(features_ND[training], labels_N[training]),
        *(features_ND[validation], labels_N[validation]),
        CLASSES,
    )
    print(
        f"head of {images} x {FEATURES} features and {CLASSES} classes: "
        f"{time.perf_counter() - began:.2f} s, {time.process_time() - processor_began:.2f} s of "
        f"processor time, {len(head.tried)} values of C tried on "
        f"{head.validation_images} validation and {head.held_out_images} held-out images",
        flush=True,
    )


if __name__ == "__main__":
    main()
