"""Check that a reduced-precision model answers on this processor as where it was exported.

int8 products overflow on processors without the instructions that they are meant for (VNNI), so a
model that was right on one machine can be wrong on another. An export therefore holds a few dozen
images with the probabilities that it gave them; a server asks for them again before it answers
anybody. Needs numpy and onnxruntime alone.

Shapes: N images of height H, width W and C channels, K classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.workers.host.processors import this_processor

Array = np.ndarray[Any, Any]
Answers = Callable[[Array], Array]
"""Maps uint8 images (N, H, W, C) to probabilities (N, K)."""

CHECK_FILE, RECORD_FILE = "processor_check.npz", "export.json"
IMAGES = 32
"""Number of images in the check."""


class ProcessorCheck(NamedTuple):
    """The result of the check on this processor."""

    passed: bool
    largest_difference: float
    """Largest difference in probability between this processor and the one of the export; NaN if
    one is not a number."""
    allowed_difference: float
    images: int
    finding: str
    """The result in one sentence."""


def write_check(folder: Path, answers: Answers, images_NHWC: Array) -> None:
    """Store images and what the exported model answers; uncompressed arrays without pickle."""
    probabilities_NK = answers(images_NHWC)
    np.savez_compressed(
        folder / CHECK_FILE, images=images_NHWC, probabilities=probabilities_NK.astype(np.float32)
    )


def check_on_this_processor(folder: Path, answers: Answers) -> ProcessorCheck | None:
    """Compare a model's answers on this processor with those on the processor of the export.

    Args:
        folder: the folder of the export.
        answers: the function that answers images, as the model serves them.

    Returns:
        None if the folder holds no check: a model in float32 needs none.
    """
    file, record = folder / CHECK_FILE, folder / RECORD_FILE
    if not file.is_file():
        return None
    described = json.loads(record.read_text(encoding="utf-8"))
    allowed, exported_on = float(described["allowed_difference"]), described["processor"]["name"]
    with np.load(file, allow_pickle=False) as stored:
        images_NHWC, expected_NK = stored["images"], stored["probabilities"]
    largest = float(np.max(np.abs(answers(images_NHWC) - expected_NK)))  # NaN if any is
    passed = largest <= allowed
    here = this_processor().name
    same = "differ by at most" if passed else "differ by up to"
    finding = (
        f"its probabilities of {len(images_NHWC)} stored images {same} {largest:.2g} on this "
        f"processor ({here}) from those on the processor of the export ({exported_on})"
    )
    if not passed:
        finding += (
            f", more than the {allowed:g} allowed; export it again on this processor, or serve the "
            "package itself"
        )
    return ProcessorCheck(passed, largest, allowed, len(images_NHWC), finding)
