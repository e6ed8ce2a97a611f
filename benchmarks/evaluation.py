"""Images/s of an evaluation's predictions against a plain torch loop, in turn, in the same run.

    python -m benchmarks.evaluation [ROUNDS]

Both predict the digits, which are stored at 32 pixels, in float32 with the same random weights: a
ViT of width 192 and depth 9 with patches of 4 pixels, and the model that plans choose for small
images. The plain loop: images in memory, normalised as torchvision's transforms do it, batches of
256, inference mode. Patchline's side is that of `patchline run`: from the prepared store on disk.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data import ingestion
from pipeline.data.prepared_store import open_images
from pipeline.models.inference import predict_logits
from pipeline.models.model_building import build_model
from pipeline.plugin_api import ImageSpec
from pipeline.training.device import make_repeatable

_BATCH = 256
_MODELS: dict[str, dict[str, Any]] = {
    "ViT 192x9": {"name": "vit", "embed_dim": 192, "depth": 9, "num_heads": 3},
    "early pooling, 192 wide": {
        "name": "vit",
        "embed_dim": 192,
        "depth": 1,
        "num_heads": 6,
        "mlp_dim": 384,
        "pooling": "average",
        "patch_embedding": {"name": "whitened", "num_halvings": 3, "early_pooling": True},
    },
}


def main(rounds: int = 5) -> None:
    """Print the median rates and their ratio for each model."""
    quiet_libraries.apply()
    print(machine(), flush=True)
    make_repeatable(None)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        for name, model in _MODELS.items():
            _compare(name, model, Path(folder), rounds)


def _compare(name: str, chosen: dict[str, Any], workspace: Path, rounds: int) -> None:
    config = config_files.validated({"data": {"image_size": 32}, "model": chosen})
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    torch.manual_seed(0)
    model = build_model(config.model, prepared.image, len(data.classes)).eval()
    images = open_images(prepared.store)
    rows = np.arange(sum(data.counts.values()), dtype=np.int64)
    in_memory = torch.from_numpy(np.array(images[rows]))
    sides: dict[str, Callable[[], torch.Tensor]] = {
        "evaluation": lambda: predict_logits(model, images, rows, prepared.image),
        "plain loop": lambda: _plain(model, in_memory, prepared.image),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    answers = {side: predict() for side, predict in sides.items()}  # warms up
    torch.testing.assert_close(*answers.values(), atol=1e-3, rtol=1e-3)
    for _ in range(rounds):
        for side, predict in sides.items():
            began = time.perf_counter()
            predict()
            seconds[side].append(time.perf_counter() - began)
    ours, plain = (len(rows) / statistics.median(taken) for taken in seconds.values())
    print(
        f"{name}: median of {rounds}, evaluation {ours:,.0f} images/s, plain loop {plain:,.0f}, "
        f"ratio {ours / plain:.2f}",
        flush=True,
    )


@torch.inference_mode()
def _plain(model: nn.Module, images_NHWC: torch.Tensor, image: ImageSpec) -> torch.Tensor:
    mean_C11 = torch.tensor(image.mean).view(-1, 1, 1)
    std_C11 = torch.tensor(image.std).view(-1, 1, 1)
    found = []
    for start in range(0, len(images_NHWC), _BATCH):
        batch_BCHW = images_NHWC[start : start + _BATCH].permute(0, 3, 1, 2).float() / 255
        found.append(model((batch_BCHW - mean_C11) / std_C11))
    return torch.cat(found)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
