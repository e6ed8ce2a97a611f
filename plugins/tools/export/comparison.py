"""A form of a model compared with the package: whether their outputs agree, and which is faster.

Shapes: N images of height H, width W and C channels, K classes.
"""

from __future__ import annotations

import operator
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.reading import image_root
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, proportion
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.registry.version_evaluation import (
    EvaluationChoices,
    choose_images,
    prepare_images,
)
from patchline.pipeline.registry.version_records import VersionRecords, available_records
from patchline.pipeline.templates import render_markdown

Array = np.ndarray[Any, Any]
LEAST_AGREEMENT = 0.995
"""Share of images with the package's label that every form must reach."""
FEWEST_IMAGES = 30
"""Of fewer images, nothing is concluded."""
_MOST_DECIMALS = 9


class Bounds(FrozenModel):
    """What a form must keep to on the compared images."""

    agreement: float = LEAST_AGREEMENT
    """Smallest allowed share of images with the package's label."""
    largest: float
    """Largest allowed difference in any probability."""
    mean: float
    """Largest allowed mean over the images of the largest difference of each."""


EXACT = Bounds(largest=1e-4, mean=1e-5)
"""For a form that computes in float32, as the package does."""
REDUCED = Bounds(largest=0.15, mean=0.02)
"""For a form that computes in fewer bits."""


class Agreement(FrozenModel):
    """How the probabilities of a form differ from the package's."""

    labels: MetricEstimate
    """Share of images to which both give the same label; of a multi-label model, the same set."""
    largest_difference: float | None
    """Largest difference in any probability; None if one is not a number."""
    mean_difference: float | None
    """Mean over the images of the largest difference of each; None if one is not a number."""
    package_accuracy: MetricEstimate
    """The accuracy of the package; of a multi-label model, the share of images whose labels are all
    right."""
    form_accuracy: MetricEstimate
    bounds: Bounds
    is_multi_label: bool = Field(default=False, exclude_if=operator.not_)

    @property
    def failures(self) -> tuple[str, ...]:
        """Each bound that is not kept, as a clause with its numbers."""
        values = {"agreement": self, "percent": percent, "fewest": FEWEST_IMAGES}
        return tuple(render_markdown("failures.md.j2", __package__, **values).splitlines())

    @property
    def passed(self) -> bool:
        """Whether all bounds are kept."""
        return not self.failures

    @property
    def accuracies(self) -> str:
        """Both accuracies, for a sentence."""
        return (
            f"{self.measure} {self.form_accuracy.value:.1%}, package "
            f"{self.package_accuracy.value:.1%}"
        )

    @property
    def measure(self) -> str:
        """What the accuracies are called."""
        return "exact match" if self.is_multi_label else "accuracy"


def compare_forms(
    package_NK: Array,
    form_NK: Array,
    labels_N: Array,
    bounds: Bounds,
    thresholds_K: Array | None = None,
) -> Agreement:
    """Compare the probabilities of a form with those of the package.

    Args:
        package_NK: probabilities of the package (N, K).
        form_NK: probabilities of the form (N, K), for the same images.
        labels_N: number of the true class of each image; of a multi-label model, zeros and ones
            (N, K).
        bounds: the differences that are allowed.
        thresholds_K: the threshold of each label (K) of a multi-label model; None if an image has
            one class.
    """
    count = len(labels_N)
    expected_N, given_N = (_choose(each, thresholds_K) for each in (package_NK, form_NK))
    worst_N = np.abs(form_NK.astype(np.float64) - package_NK).max(axis=1, initial=0.0)
    is_number = bool(np.isfinite(worst_N).all())
    return Agreement(
        labels=proportion(_equal(expected_N, given_N) if is_number else 0, count),
        largest_difference=float(worst_N.max(initial=0.0)) if is_number else None,
        mean_difference=float(worst_N.mean()) if is_number and count else None,
        package_accuracy=proportion(_equal(expected_N, labels_N), count),
        form_accuracy=proportion(_equal(given_N, labels_N), count),
        bounds=bounds,
        is_multi_label=thresholds_K is not None,
    )


def _choose(probabilities_NK: Array, thresholds_K: Array | None) -> Array:
    """Return the number of each image's class (N), or zeros and ones for its labels (N, K)."""
    if thresholds_K is None:
        numbers_N: Array = probabilities_NK.argmax(1)
        return numbers_N
    chosen_NK: Array = probabilities_NK >= thresholds_K
    return chosen_NK.astype(np.int64)


def _equal(some: Array, others: Array) -> int:
    """Return how many images have the same class, or the same labels."""
    same = some == others
    return int((same if same.ndim == 1 else same.all(axis=1)).sum())


def percent(share: float) -> str:
    """Return a share in percent, rounded to one decimal.

    It has more of them if it would otherwise seem to be all, or the least that is allowed.
    """
    text = ""
    for decimals in range(1, _MOST_DECIMALS):
        text = f"{100 * share:.{decimals}f}"
        if all((float(text) >= 100 * least) == (share >= least) for least in (LEAST_AGREEMENT, 1)):
            break
    return f"{text}%"


Answers = Callable[[Array], Array]
"""Maps uint8 images (N, H, W, C) to probabilities (N, K)."""


def _check_nothing(images_NHWC: Array, expected_NK: Array) -> None:
    """Check nothing: the comparison covers all of most forms."""
    del images_NHWC, expected_NK


@dataclass(frozen=True)
class FormInputs:
    """What the forms of a model are made from."""

    package_folder: Path
    """The folder that holds `model.onnx`, `model.json` and `model.safetensors`."""
    package: PackagedModel
    reference: ModelReference
    """The registered version."""
    images: ComparisonImages
    """Images to compare on, and to take the ranges of int8 activations from."""
    scratch: Path
    """An empty folder."""

    def new_folder(self, name: str, *copied: str) -> Path:
        """Return a new folder for a form, with some files of the package."""
        folder = self.scratch / name
        folder.mkdir()
        for each in copied:
            if (self.package_folder / each).is_file():
                shutil.copyfile(self.package_folder / each, folder / each)
        return folder


@dataclass(frozen=True)
class ExportCandidate:
    """A form that may be written if it agrees with the package."""

    name: str
    """The form and how it was made, such as `int8, static`."""
    folder: Path
    """The folder that holds the files of the form, and nothing else."""
    model_files: tuple[str, ...]
    """The files whose size is compared with that of `model.onnx`."""
    open: Callable[[int], Answers]
    """Opens the files that were written, with a number of threads; 0 for one per core."""
    bounds: Bounds
    details: Mapping[str, str] = field(default_factory=dict)
    """How it was made, for its record."""
    libraries: tuple[str, ...] = ("onnxruntime",)
    """Distributions whose versions determine its answers."""
    is_bound_to_processor: bool = False
    """Whether other processors may answer differently, so that a server has to check."""

    is_timed: bool = True
    """Whether its latency may differ from the package's."""
    check: Callable[[Array, Array], None] = _check_nothing
    """Checks whatever else belongs to it on images (N, H, W, C) with the package's probabilities
    (N, K); raises a PackagingError."""

    @property
    def bytes(self) -> int:
        """Size of the model files."""
        return sum((self.folder / name).stat().st_size for name in self.model_files)


BATCH_SIZES = (1, 8, 32)
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 50
SECONDS = 2.0
"""That the rounds of one batch size take, unless three rounds take longer."""


class BatchLatency(FrozenModel):
    """Median time of one batch, decoding not included."""

    batch_size: int
    package_milliseconds: float
    form_milliseconds: float
    rounds: int

    @property
    def speedup(self) -> float:
        """How many times as fast the form is."""
        return self.package_milliseconds / self.form_milliseconds


def measure_latency(
    package: Answers, form: Answers, images_NHWC: Array, seconds: float = SECONDS
) -> tuple[BatchLatency, ...]:
    """Time the package and a form in turn at each batch size.

    Args:
        package: the package, which maps images to probabilities.
        form: the same, in another form.
        images_NHWC: images to take the batches from; they repeat if there are too few.
        seconds: budget for each batch size.
    """
    return tuple(_of_batch(package, form, images_NHWC, size, seconds) for size in BATCH_SIZES)


def _of_batch(
    package: Answers, form: Answers, images_NHWC: Array, size: int, seconds: float
) -> BatchLatency:
    batch = np.ascontiguousarray(np.resize(images_NHWC, (size, *images_NHWC.shape[1:])))
    times: tuple[list[float], list[float]] = ([], [])
    package(batch)  # the first call of a batch size allocates
    form(batch)
    began = time.perf_counter()
    while len(times[0]) < _FEWEST_ROUNDS or (
        len(times[0]) < _MOST_ROUNDS and time.perf_counter() - began < seconds
    ):
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for which in order:
            start = time.perf_counter()
            (package, form)[which](batch)
            times[which].append(time.perf_counter() - start)
    return BatchLatency(
        batch_size=size,
        package_milliseconds=1000 * statistics.median(times[0]),
        form_milliseconds=1000 * statistics.median(times[1]),
        rounds=len(times[0]),
    )


StageProgress = Callable[[str, int, int], None]

MOST_IMAGES = 1000
"""That are compared; of more, a random sample that is the same each time."""
CALIBRATION_IMAGES = 128
"""That the ranges of int8 activations are taken from."""
_SEED = 20_260_101
_USE_DATA = "Give labelled images with --data."


@dataclass(frozen=True)
class ComparisonImages:
    """Images as the package takes them, with their true classes."""

    images_NHWC: Array
    labels_N: Array
    """Numbers of the classes; of a multi-label model, zeros and ones (N, K)."""
    origin: str
    """A description of the images, for a sentence."""
    calibration_NHWC: Array
    """Images to calibrate int8 with, others than those that are compared; empty if there are
    none."""
    calibration_origin: str


class _Chosen(NamedTuple):
    """Images that were chosen, not yet decoded."""

    rows: pd.DataFrame
    origin: str
    """A description of the images, for a sentence."""


def of_run(
    reference: ModelReference, workspace: Path, on_progress: StageProgress
) -> ComparisonImages:
    """Return test images of a version's own run, and training images for int8.

    Raises:
        DataError: if they are not recorded, or gone.
    """
    records = available_records(reference)
    if records.manifest is None:
        raise DataError(
            f"The run that trained {records.label} is gone, so its test images are not known and "
            f"nothing can be compared. {_USE_DATA}"
        )
    if records.root is None:
        raise DataError(
            f"The images that {records.label} was tested on are gone, so nothing can be compared. "
            f"Restore their folder, or point to others: {_USE_DATA.lower()}"
        )
    rows = manifests.usable(records.manifest)
    tested = _sample(rows[rows["split"] == "test"], MOST_IMAGES)
    trained = _sample(rows[rows["split"] == "train"], CALIBRATION_IMAGES)
    if tested.empty:
        raise DataError(
            f"The run that trained {records.label} has no test images, so nothing can be compared. "
            f"{_USE_DATA}"
        )
    total = int((rows["split"] == "test").sum())
    return _decode(
        records,
        records.root,
        _Chosen(tested, f"{_of(len(tested), total)} test images of its run"),
        _Chosen(trained, f"{len(trained):,} training images of its run"),
        workspace,
        on_progress,
    )


def of_data(
    reference: ModelReference, config: RunConfig, workspace: Path, on_progress: StageProgress
) -> ComparisonImages:
    """Return images of other data; those that the version has seen calibrate int8, if any.

    Args:
        reference: the version that is exported.
        config: its section `data` names the images.
        workspace: the folder in which decoded images are cached.
        on_progress: called as they are read.

    Raises:
        DataError: if no labelled image of the model's classes is left.
    """
    known = available_records(reference)
    choices = EvaluationChoices(
        split="auto", seen_images=not known.is_recorded, common_classes=True
    )
    chosen = choose_images(reference, config, choices, workspace, on_progress)
    records, rows = chosen.records, chosen.selection.rows
    everything = manifests.usable(chosen.data.manifest)
    others = everything[~everything["sha256"].isin(set(rows["sha256"]))]
    calibrating = others[others["split"] != "test"]
    source = "images of the data that are not compared"
    if len(calibrating) < CALIBRATION_IMAGES:
        shuffled = rows.sample(frac=1.0, random_state=_SEED)
        kept = min(CALIBRATION_IMAGES, len(rows) // 4)
        calibrating, rows = shuffled[:kept], shuffled[kept:]
    tested, calibrating = _sample(rows, MOST_IMAGES), _sample(calibrating, CALIBRATION_IMAGES)
    caveat = (
        ""
        if known.is_recorded
        else ", of which it is not known whether the model was trained on them"
    )
    return _decode(
        records,
        chosen.data.root,
        _Chosen(tested, f"{_of(len(tested), len(rows))} images of {chosen.data.name}{caveat}"),
        _Chosen(calibrating, f"{len(calibrating):,} {source}"),
        workspace,
        on_progress,
    )


def _decode(
    records: VersionRecords,
    root: Path,
    tested: _Chosen,
    calibrating: _Chosen,
    workspace: Path,
    on_progress: StageProgress,
) -> ComparisonImages:
    package = records.package
    if not image_root.exists(root):
        raise DataError(f"The images in {root} are gone. {_USE_DATA}")
    both = pd.concat([tested.rows, calibrating.rows], ignore_index=True)
    images = prepare_images(package, both, root, workspace, on_progress)
    return ComparisonImages(
        images_NHWC=np.array(images[np.arange(len(tested.rows))]),
        labels_N=records.task.labels(list(tested.rows["label"]), package.classes),
        origin=tested.origin,
        calibration_NHWC=np.array(images[np.arange(len(tested.rows), len(both))]),
        calibration_origin=calibrating.origin,
    )


def _sample(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    if len(rows) <= most:
        return rows
    return rows.sample(n=most, random_state=_SEED)


def _of(count: int, total: int) -> str:
    return f"{count:,}" if count == total else f"{count:,} (random) of {total:,}"
