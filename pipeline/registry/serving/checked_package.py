"""Open a package, compute with it once, and check its answers, before a client sees one."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.errors import RunError
from patchline.pipeline.packaging.package_digests import ChangedPackageError
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.processor_check import check_on_this_processor

logger = logging.getLogger(__name__)

_IMAGES = 4
_TOLERANCE = 1e-3
"""Of the sum of one label's probabilities, and of an image alone and in a batch if all is in
float32."""
_QUICK_SECONDS = 0.025
"""A network that computes an image in less computes several at a time, each on one core."""
_MOST_THREADS = 8
"""Threads that compute one image of a slower network."""
_ROUNDS = 3
_MEASURED_SECONDS = 0.1
"""After so long, a batch is not measured again."""
_MEASURED_SECONDS_OF_ALL = 0.5
"""After so long, no larger batch than `_LEAST_MEASURED` is measured."""
_LEAST_MEASURED, _MOST_TOGETHER = 2, 64
"""Images in the largest batch that is measured at least, and at most."""
_SMALL_GAIN = 0.02
"""A share of the seconds of an image that does not pay for a batch of twice the size."""
_MOST_MISSES = 2
"""Doublings in turn without a larger gain, after which no larger batch is measured."""


class PackageRefusedError(RunError):
    """A package that may not be served; the text names no path, because clients see it."""


class Checked(NamedTuple):
    """A package that may be served."""

    package: PackagedModel
    computing: int
    """How many batches are computed at a time."""
    batch: int
    """Images beyond which a larger batch is hardly faster for each of them."""


def check_package(folder: Path, threads: int) -> Checked:
    """Open the package in a folder, warm it, and check it.

    One that answers differently on other processors, as `patchline export --to int8` writes it, is
    compared with its answers on the processor of the export.

    Args:
        folder: the folder of an MLflow model or of an export.
        threads: the number of threads that may compute.

    Raises:
        PackageRefusedError: if it may not be served, with the reason.
    """
    artifacts = folder / "artifacts"
    if not artifacts.is_dir():
        artifacts = folder
    onnx_file, description_file = artifacts / ONNX_FILE, artifacts / DESCRIPTION_FILE
    for file in (onnx_file, description_file):
        if not file.is_file():
            raise PackageRefusedError(f"it lacks the file {file.name}")
    try:
        package = PackagedModel(onnx_file, description_file, threads=1)
    except ChangedPackageError as error:
        raise PackageRefusedError(str(error)) from error
    except Exception as error:  # onnxruntime documents no exception class for an unreadable file
        logger.warning("The package in %s cannot be opened: %s", folder, error)
        raise PackageRefusedError("its files are damaged") from error
    if not package.is_verified:
        logger.warning("The package holds no digests: whether its files were changed is not known.")
    if not package.classes:
        raise PackageRefusedError("it is an encoder without classes")
    allowed = _check_on_processor(artifacts, package)
    seconds = _seconds_of_one(package, allowed)
    if seconds > _QUICK_SECONDS and threads > 1:
        each = min(threads, _MOST_THREADS)
        package = package.with_threads(each)
        _seconds_of_one(package, allowed)
        return Checked(
            package, max(1, threads // each), measure_paying_batch(package, time.perf_counter)
        )
    return Checked(package, threads, measure_paying_batch(package, time.thread_time))


def measure_paying_batch(package: PackagedModel, clock: Callable[[], float]) -> int:
    """Return how many images to compute together at most.

    An image waits for all others of its batch, so a batch that takes in proportion to its images
    only delays them. It is the smallest batch that is almost as fast for each image as the fastest
    one; or twice that, if it is no slower, since a call costs more beside the threads that decode
    and answer. Sizes are doubled until that has gained nothing twice, because one measurement on a
    machine that is in use may be wrong.

    Args:
        package: the package whose answers to a batch are timed.
        clock: returns the time in seconds.
    """
    spec = package.image
    image = np.zeros((spec["height"], spec["width"], spec["channels"]), np.uint8)
    began, misses = clock(), 0
    each = {1: _seconds_for(package, [image], clock)}
    while misses < _MOST_MISSES and (size := 2 * max(each)) <= _MOST_TOGETHER:
        if clock() - began > _MEASURED_SECONDS_OF_ALL and size > _LEAST_MEASURED:
            break
        least = min(each.values())
        each[size] = _seconds_for(package, [image] * size, clock) / size
        misses = misses + 1 if each[size] >= least * (1 - _SMALL_GAIN) else 0
    least = min(each.values())
    size = min(size for size, seconds in each.items() if seconds <= least * (1 + _SMALL_GAIN))
    return 2 * size if each.get(2 * size, float("inf")) <= each[size] else size


def _seconds_for(
    package: PackagedModel, images: list[np.ndarray[Any, Any]], clock: Callable[[], float]
) -> float:
    """Return the least seconds of several measurements, which end early for a slow network."""
    least, began = float("inf"), time.monotonic()
    for _ in range(_ROUNDS):
        start = clock()
        package.answers_to(images, top_k=1)
        least = min(least, clock() - start)
        if time.monotonic() - began > _MEASURED_SECONDS:
            break
    return least


def _check_on_processor(artifacts: Path, package: PackagedModel) -> float:
    """Check the answers of a package that depends on the processor.

    Returns:
        The largest difference in probability between an image alone and in a batch.

    Raises:
        PackageRefusedError: if this processor answers differently, or the check cannot be read.
    """
    try:
        found = check_on_this_processor(artifacts, package.probabilities)
    except Exception as error:  # files of somebody else, damaged in any way
        logger.warning("The processor check in %s fails: %s", artifacts, error)
        raise PackageRefusedError("its check of the processor is damaged") from error
    if found is None:
        return _TOLERANCE
    logger.info("Checked on this processor: %s.", found.finding)
    if not found.passed:
        raise PackageRefusedError(found.finding)
    return found.allowed_difference


def _seconds_of_one(package: PackagedModel, allowed: float) -> float:
    """Check a package's answers, and return the processor time of one image, in this thread.

    Raises:
        PackageRefusedError: if an answer is wrong.
    """
    spec = package.image
    generator = np.random.default_rng(0)
    shape = _IMAGES, spec["height"], spec["width"], spec["channels"]
    images = generator.integers(0, 256, shape, dtype=np.uint8)
    try:
        together = package.outputs(images)
        alone = np.concatenate([package.outputs(image[None]) for image in images])
        times = []
        for _ in range(_ROUNDS):
            began = time.thread_time()  # other processes of the machine do not count
            package.outputs(images[:1])
            times.append(time.thread_time() - began)
        answers = package.answers_to(list(images), top_k=1)
    except Exception as error:  # onnxruntime documents no exception class for a failing network
        logger.warning("The package fails on an image: %s", error)
        raise PackageRefusedError("it fails on an image") from error
    _check(package, together, alone, answers, allowed)
    return statistics.median(times)


def _check(
    package: PackagedModel,
    together_BK: np.ndarray[Any, Any],
    alone_BK: np.ndarray[Any, Any],
    answers: list[dict[str, Any]],
    allowed: float,
) -> None:
    expected = (_IMAGES, len(package.classes))
    if together_BK.shape != expected:
        raise PackageRefusedError(
            f"its network computes {together_BK.shape[-1]} probabilities for "
            f"{len(package.classes)} classes"
        )
    if not _are_probabilities(together_BK, of_one_label=not package.is_multi_label):
        raise PackageRefusedError("its network computes no probabilities")
    if np.abs(together_BK - alone_BK).max() > allowed:
        raise PackageRefusedError("an image has other probabilities alone than in a batch")
    for row_K, answer in zip(together_BK, answers, strict=True):
        if _list_named(answer) != _list_named(package.writer.verdict(row_K, 1)):
            raise PackageRefusedError("its answers name other classes than its network")


def _are_probabilities(outputs_BK: np.ndarray[Any, Any], *, of_one_label: bool) -> bool:
    """Return whether outputs are probabilities; those of one label for each image sum to 1."""
    if not np.isfinite(outputs_BK).all() or (outputs_BK < 0).any():
        return False
    if of_one_label:
        return bool(np.abs(outputs_BK.sum(axis=1) - 1).max() <= _TOLERANCE)
    return bool((outputs_BK <= 1 + _TOLERANCE).all())


def _list_named(answer: Mapping[str, Any]) -> list[Any]:
    """Return the class that an answer names, or the labels."""
    return [each["label"] for each in answer.get("labels", [answer])]
