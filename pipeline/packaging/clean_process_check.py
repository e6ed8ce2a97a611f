"""Check that a registered package loads and predicts in a clean process, and how fast.

The process runs `clean_process_script.py`, which imports nothing from Patchline.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.packaging import clean_process_script
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.workspace.files.sealed_files import verify

TOLERANCE = 1e-4
"""Largest allowed difference in probability between the clean process and this one."""
_IMAGES = 8
_ROUNDS = 20
_SECONDS = 180
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH")
_ENVIRONMENT = {
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


class PackageCheck(FrozenModel):
    """The result of the check."""

    passed: bool
    largest_difference: float | None
    """Largest difference in probability from the same package in this process."""
    milliseconds: float | None
    """Median time for one image, decoding included."""
    finding: str
    """The result in words, shown by the `package` gate."""


def check_package(folder: Path, package: PackagedModel) -> PackageCheck:
    """Predict generated photographs with a package in a clean process.

    Args:
        folder: the folder of the package, as MLflow stores it.
        package: the same package opened in this process, for comparison.
    """
    damage = _damage(folder / "artifacts")
    if damage:
        return _report_failure(damage)
    with tempfile.TemporaryDirectory(prefix="patchline-") as scratch:
        images = _photographs(Path(scratch), max(package.mapping.bands, default=0))
        listed = Path(scratch) / "images.json"
        listed.write_text(json.dumps([str(image) for image in images]), encoding="utf-8")
        try:
            done = subprocess.run(
                [
                    sys.executable,
                    "-I",
                    str(clean_process_script.__file__),
                    str(folder),
                    str(listed),
                    str(_ROUNDS),
                ],
                cwd=scratch,
                env={**{k: os.environ[k] for k in _KEPT if k in os.environ}, **_ENVIRONMENT},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _report_failure(f"it did not finish within {_SECONDS} s")
        if done.returncode != 0:
            last = done.stderr.strip().splitlines() or ["no message"]
            return _report_failure(f"it fails to load or to predict: {last[-1][:300]}")
        answer = json.loads(done.stdout.splitlines()[-1])
        return _judge(answer, package, images)


def _damage(artifacts: Path) -> str:
    """Return what is wrong with the files that the clean process does not read."""
    weights = artifacts / WEIGHTS_FILE
    if not weights.is_file():
        return f"its file {weights.name} is missing"
    try:
        verify(weights)
    except DamagedFileError:
        return f"its file {weights.name} is damaged"
    return ""


def _judge(answer: dict[str, Any], package: PackagedModel, images: list[Path]) -> PackageCheck:
    milliseconds = statistics.median(answer["milliseconds"])
    if answer["modules"]:
        return _report_failure(
            f"it imports {', '.join(answer['modules'])}, which a package must not depend on"
        )
    here = package.answers(list(images), top_k=len(package.classes))
    largest = max(
        _difference(own, other) for own, other in zip(here, answer["answers"], strict=True)
    )
    if not largest <= TOLERANCE:
        return PackageCheck(
            passed=False,
            largest_difference=None if np.isnan(largest) else largest,
            milliseconds=milliseconds,
            finding=f"its answers differ by {largest:.2g} in a clean process",
        )
    return PackageCheck(
        passed=True,
        largest_difference=largest,
        milliseconds=milliseconds,
        finding=f"it loads and predicts in a clean process, {milliseconds:.1f} ms per image",
    )


def _difference(own: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference in a class's probability or a feature; NaN if any is NaN."""
    if "features" in own:
        return float(np.max(np.abs(np.subtract(own["features"], other["features"]))))
    theirs = {each["label"]: each["probability"] for each in other["top_k"]}
    return float(
        np.max([abs(each["probability"] - theirs[each["label"]]) for each in own["top_k"]])
    )


def _photographs(folder: Path, bands: int = 0) -> list[Path]:
    """Write images of two sizes with smooth random colours; the same images each time.

    Args:
        folder: the folder that receives the images.
        bands: number of bands that an image needs; with more than three it is a TIFF file, else a
            JPEG file.
    """
    import cv2

    generator = np.random.default_rng(0)
    files = []
    for number in range(_IMAGES):
        height, width = (120, 90) if number % 2 else (96, 160)
        coarse = generator.integers(0, 256, (6, 8, max(3, bands)), dtype=np.uint8)
        pixels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        many = bands > 3  # noqa: PLR2004 - RGB
        file = folder / f"{number}{'.tiff' if many else '.jpg'}"
        content = _tiff(pixels) if many else cv2.imencode(".jpg", pixels)[1].tobytes()
        file.write_bytes(content)
        files.append(file)
    return files


def _tiff(pixels_HWN: np.ndarray[Any, Any]) -> bytes:
    """Return an image of many bands as a TIFF file."""
    height, width, bands = pixels_HWN.shape
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 0, 277: bands, 278: height}
    tags[279] = pixels_HWN.size
    start = 8 + 2 + 12 * len(tags) + 4
    tags[273] = start + 2 * bands  # behind the bits of each band
    entries = [
        struct.pack("<HHII", tag, 3, bands, start)
        if tag == 258  # noqa: PLR2004 - bits per sample
        else struct.pack("<HHII", tag, 4, 1, value)
        for tag, value in sorted(tags.items())
    ]
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(entries) + bytes(4)
    return head + struct.pack(f"<{bands}H", *[8] * bands) + pixels_HWN.tobytes()


def _report_failure(finding: str) -> PackageCheck:
    return PackageCheck(passed=False, largest_difference=None, milliseconds=None, finding=finding)
