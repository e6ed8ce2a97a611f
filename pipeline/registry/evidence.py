"""What the registry and the runs behind it know about a version: data, predictions, figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.data.decoding import UndecodableImageError
from pipeline.data.image_file import open_regular
from pipeline.errors import ModelReferenceError
from pipeline.files.file_digest import sha256_of
from pipeline.packaging.packaged_model import PackagedModel
from pipeline.registry.package_download import open_package, package_folder
from pipeline.registry.registered_models import ModelReference
from pipeline.tracking.tracked_run import DATA_ROOT_TAG
from pipeline.tracking.tracking_store import client

if TYPE_CHECKING:
    from mlflow import MlflowClient

Array = np.ndarray[Any, Any]
_BATCH = 64
_TEST = "test/"


@dataclass(frozen=True)
class Evidence:
    """What is known about a version."""

    reference: ModelReference
    run_id: str
    metrics: dict[str, float]
    """Of the version's own test report, by bare name."""
    manifest: pd.DataFrame
    """The data that the version was trained, chosen and tested on."""
    predictions: pd.DataFrame
    """Columns sha256 and probabilities, in the order of the package's classes; may be empty."""
    root: Path | None
    """The folder that the manifest's paths are relative to, if it is still there."""

    @cached_property
    def folder(self) -> Path:
        """The package as MLflow stores it, fetched when it is first needed."""
        return package_folder(self.reference)

    @cached_property
    def package(self) -> PackagedModel:
        """The packaged model, opened when it is first needed."""
        return open_package(self.reference, self.folder)

    @property
    def label(self) -> str:
        """The version as it is written: `flowers/3`."""
        return f"{self.reference.name}/{self.reference.version}"


def gather(reference: ModelReference) -> Evidence:
    """Return what the run of a version has recorded.

    Raises:
        ModelReferenceError: if its run or its manifest is gone.
    """
    from mlflow.exceptions import MlflowException

    store = client()
    version = store.get_model_version(reference.name, reference.version)
    try:
        run = store.get_run(str(version.run_id))
        with tempfile.TemporaryDirectory(prefix="patchline-") as folder:
            manifest = _table(store, run.info.run_id, "data", folder)
            predictions = _table(store, run.info.run_id, "report", folder)
    except (MlflowException, OSError) as error:
        reason = str(error).splitlines()[0][:200]
        raise _gone(reference, reason) from error
    if manifest is None:
        raise _gone(reference, "its manifest is not among the run's artifacts")
    root = run.data.tags.get(DATA_ROOT_TAG)
    metrics = {
        key.removeprefix(_TEST): float(value)
        for key, value in run.data.metrics.items()
        if key.startswith(_TEST)
    }
    usable = predictions is not None and {"sha256", "probabilities"} <= set(predictions.columns)
    return Evidence(
        reference=reference,
        run_id=run.info.run_id,
        metrics=metrics,
        manifest=manifest,
        predictions=predictions
        if predictions is not None and usable
        else pd.DataFrame({"sha256": [], "probabilities": []}),
        root=Path(root) if root and Path(root).is_dir() else None,
    )


def probabilities_of(
    evidence: Evidence,
    images: pd.DataFrame,
    root: Path | None,
    classes: tuple[str, ...],
    on_progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Return what a version says about images, from its records or from its package.

    Args:
        evidence: of the version.
        images: columns path and sha256.
        root: the folder that the paths are relative to; none if the images are gone.
        classes: the order of the columns that is wanted.
        on_progress: sees how many of the images without a record are done.

    Returns:
        Probabilities (N, K); a row of NaN where there is neither record nor image.
    """
    known = dict(
        zip(evidence.predictions["sha256"], evidence.predictions["probabilities"], strict=True)
    )
    rows = [known.get(sha256) for sha256 in images["sha256"]]
    order = _order(evidence.package.classes if classes else [], classes)
    answers = np.full((len(images), len(classes)), np.nan, np.float32)
    for position, row in enumerate(rows):
        if row is not None:
            answers[position] = np.asarray(row)[order]
    missing = [position for position, row in enumerate(rows) if row is None]
    if missing and root is not None:
        _predict(evidence.package, images, root, missing, answers, order, on_progress)
    return answers


def pixels_for_page(images: pd.DataFrame, root: Path | None) -> Callable[[int], Array | None]:
    """Return a function that reads the image in a row, or gives none where it is gone."""

    def pixels_of(position: int) -> Array | None:
        from pipeline.data.decoding import decode_image
        from pipeline.data.image_file import read_image

        row = images.iloc[position]
        if root is None or not _holds(root / row["path"], row["sha256"]):
            return None
        try:
            return decode_image(read_image(root / row["path"]), 3)
        except UndecodableImageError:
            return None

    return pixels_of


def _table(store: MlflowClient, run_id: str, folder: str, into: str) -> pd.DataFrame | None:
    files = [item.path for item in store.list_artifacts(run_id, folder)]
    tables = [path for path in files if path.endswith(".parquet")]
    if not tables:
        return None
    return pd.read_parquet(store.download_artifacts(run_id, tables[0], into))


def _predict(
    package: PackagedModel,
    images: pd.DataFrame,
    root: Path,
    positions: list[int],
    answers: Array,
    order: Array,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    paths, digests = list(images["path"]), list(images["sha256"])
    for start in range(0, len(positions), _BATCH):
        chosen, pixels = [], []
        for position in positions[start : start + _BATCH]:
            file = root / paths[position]
            if not _holds(file, digests[position]):
                continue
            with suppress(UndecodableImageError):  # its decoder is not the one of this program
                pixels.append(package.pixels(file))
                chosen.append(position)
        if chosen:
            answers[chosen] = package.probabilities(np.stack(pixels))[:, order]
        if on_progress:
            on_progress(min(start + _BATCH, len(positions)), len(positions))


def _order(own: list[str], wanted: tuple[str, ...]) -> Array:
    index = {label: position for position, label in enumerate(own)}
    return np.array([index[label] for label in wanted], np.int64)


def _gone(reference: ModelReference, reason: str) -> ModelReferenceError:
    return ModelReferenceError(
        f"What '{reference.name}' version {reference.version} was trained on is not recorded any "
        f"more ({reason}). Restore its run in MLflow, or use another version."
    )


def _holds(file: Path, sha256: str) -> bool:
    """Return whether a regular file exists and has that SHA-256 in hexadecimal digits."""
    try:
        with open_regular(file) as opened:
            return sha256_of(opened) == sha256
    except (OSError, UndecodableImageError):
        return False
