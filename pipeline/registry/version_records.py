"""What the run of a registered version recorded: its data, predictions and test metrics."""

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

from patchline.pipeline.data.manifests.same_images import content_numbers
from patchline.pipeline.data.pixel_values.pixel_mapping import PLAIN, PixelMapping
from patchline.pipeline.data.reading import image_root
from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.data.reading.image_root import holds, root_image_bytes
from patchline.pipeline.errors import ModelReferenceError, first_line
from patchline.pipeline.evaluation.tasks import Task, task_of
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.provenance import CONTENT, Provenance, provenance_of
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.package_download import open_package, package_folder
from patchline.pipeline.registry.registered_models import CHECKED_TAG, ModelReference
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.tracking.tracked_run import DATA_ROOT_TAG
from patchline.pipeline.workspace.tracking.tracking_store import client

if TYPE_CHECKING:
    from mlflow import MlflowClient

Array = np.ndarray[Any, Any]
_BATCH = 64
_TEST = "test/"


@dataclass(frozen=True)
class VersionRecords:
    """What is recorded about a version."""

    reference: ModelReference
    run_id: str
    metrics: dict[str, float]
    """Metrics of the version's own test report, by name without the prefix `test/`."""
    manifest: pd.DataFrame | None
    """Rows of the data used for training, model selection and testing; None if its run is gone."""
    predictions: pd.DataFrame
    """Recorded predictions: columns sha256 and probabilities, in the package's class order; empty
    if they were never compared with those of the package, which predicts the images again then."""
    root: Path | None
    """The folder or archive that the manifest's paths are relative to; none if it is gone."""

    @cached_property
    def folder(self) -> Path:
        """The package as MLflow stores it, downloaded on first use."""
        return package_folder(self.reference)

    @cached_property
    def package(self) -> PackagedModel:
        """The packaged model, loaded on first use."""
        return open_package(self.reference, self.folder)

    @cached_property
    def task(self) -> Task[Any]:
        """What the model answers: one label, or a set of labels."""
        return task_of(self.package)

    @cached_property
    def provenance(self) -> Provenance:
        """The images that the package's weights have seen, as the package itself records them.

        The registry's runs may be those of another store or gone, so they do not decide.
        """
        name = f"version {self.reference.version} of {self.reference.name}"
        return provenance_of(self.folder / "artifacts" / WEIGHTS_FILE, name)

    @property
    def is_recorded(self) -> bool:
        """Whether anything is known about the images that the version has seen."""
        provenance = self.provenance
        return self.manifest is not None or bool(provenance.images) or not provenance.unknown

    def has_seen(self, images: pd.DataFrame) -> pd.Series[bool]:
        """Return which images, or others of their groups, are recorded as seen.

        That is, used for training or model selection by the version, or by the weights that it
        started from.

        Args:
            images: rows of a manifest.
        """
        is_seen = pd.Series(self.provenance.images.contain(images), index=images.index)
        if self.manifest is None:
            return is_seen
        used = self.manifest["split"].isin(["train", "validation"])
        of_version, numbers = content_numbers(self.manifest, images)
        groups = set(self.manifest.loc[used, "group"]) - {""}
        return is_seen | numbers.isin(of_version[used]) | images["group"].isin(groups)

    def has_tested(self, images: pd.DataFrame) -> pd.Series[bool]:
        """Return which images are recorded as those that the version was tested on.

        Args:
            images: rows of a manifest.
        """
        if self.manifest is None:
            return pd.Series(data=False, index=images.index)
        of_version, numbers = content_numbers(self.manifest, images)
        return numbers.isin(of_version[self.manifest["split"] == "test"])

    @cached_property
    def of_folds(self) -> dict[str, Array]:
        """Probabilities of images by models of folds that were not trained on them, by file digest.

        Empty if the version was trained without folds, or its predictions were not recorded.
        Images that the initial weights were trained on are left out, and so are exact copies; all
        are if it is not known which these are.
        """
        table, manifest = self.predictions, self.manifest
        if "split" not in table or not (table["split"] == "train").any() or manifest is None:
            return {}
        if self.provenance.unknown:
            return {}
        used = manifest.loc[manifest["split"].isin(["train", "validation"])]
        again = used["sha256"].duplicated() | self.provenance.inherited.contain(used, CONTENT)
        own = table[table["split"].isin(["train", "validation"])]
        own = own[~own["sha256"].isin(used.loc[again, "sha256"])]
        return dict(zip(own["sha256"], own["probabilities"], strict=True))

    @property
    def label(self) -> str:
        """The version as a reference: `flowers/3`."""
        return f"{self.reference.name}/{self.reference.version}"


def load_records(reference: ModelReference) -> VersionRecords:
    """Load what the run of a version recorded.

    Raises:
        ModelReferenceError: if its run or manifest is missing.
    """
    from mlflow.exceptions import MlflowException

    store = client()
    version = store.get_model_version(reference.name, reference.version)
    try:
        run = store.get_run(str(version.run_id))
        with tempfile.TemporaryDirectory(prefix="patchline-") as folder:
            manifest = _table(store, run.info.run_id, "data", folder)
            checked = str(version.tags.get(CHECKED_TAG, ""))
            predictions = _table(store, run.info.run_id, "report", folder, sha256=checked)
    except (MlflowException, OSError) as error:
        raise _make_missing_error(reference, first_line(error)) from error
    if manifest is None:
        raise _make_missing_error(reference, "its manifest is not among the run's artifacts")
    root = run.data.tags.get(DATA_ROOT_TAG)
    metrics = {
        key.removeprefix(_TEST): float(value)
        for key, value in run.data.metrics.items()
        if key.startswith(_TEST)
    }
    usable = predictions is not None and {"sha256", "probabilities"} <= set(predictions.columns)
    return VersionRecords(
        reference=reference,
        run_id=run.info.run_id,
        metrics=metrics,
        manifest=manifest,
        predictions=predictions if predictions is not None and usable else _no_predictions(),
        root=Path(root) if root and image_root.exists(Path(root)) else None,
    )


def available_records(reference: ModelReference) -> VersionRecords:
    """Load what is recorded about a version; its package is enough if its run is gone."""
    try:
        return load_records(reference)
    except ModelReferenceError:
        return VersionRecords(reference, "", {}, None, _no_predictions(), None)


def _no_predictions() -> pd.DataFrame:
    return pd.DataFrame({"sha256": [], "probabilities": []})


def load_or_predict(
    records: VersionRecords,
    images: pd.DataFrame,
    root: Path | None,
    classes: tuple[str, ...],
    on_progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Return a version's probabilities: recorded ones, or computed now by its package.

    Args:
        records: the version's records.
        images: a table of the images with the columns path and sha256.
        root: what the paths are relative to; none if the images are gone.
        classes: the order of the returned columns.
        on_progress: called with the number of images predicted, and the number to predict.

    Returns:
        Probabilities (N, K); NaN in rows that have neither a recorded prediction nor an image.
    """
    known = dict(
        zip(records.predictions["sha256"], records.predictions["probabilities"], strict=True)
    )
    rows = [known.get(sha256) for sha256 in images["sha256"]]
    order = _order(records.package.classes if classes else [], classes)
    probabilities_NK = np.full((len(images), len(classes)), np.nan, np.float32)
    for position, row in enumerate(rows):
        if row is not None:
            probabilities_NK[position] = np.asarray(row)[order]
    missing = [position for position, row in enumerate(rows) if row is None]
    if root is not None:
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            readable, own_RK = _predict(records.package, images.iloc[batch], root)
            probabilities_NK[np.array(batch)[readable]] = own_RK[:, order]
            if on_progress:
                on_progress(start + len(batch), len(missing))
    return probabilities_NK


def image_reader(
    images: pd.DataFrame, root: Path | None, mapping: PixelMapping = PLAIN
) -> Callable[[int], Array | None]:
    """Return a function that reads the image in a row; it returns none if the image is gone.

    Args:
        images: a table of the images with the columns path and sha256.
        root: what the paths are relative to; none if the images are gone.
        mapping: what becomes of values that are not of 8 bits.
    """

    def pixels_of(position: int) -> Array | None:
        from patchline.pipeline.data.reading.decoding import decode_image
        from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg

        row = images.iloc[position]
        if root is None or not holds(root, row["path"], row["sha256"]):
            return None
        try:
            with root_image_bytes(root, row["path"]) as data:
                return decode_image(data, 3, decode_jpeg, mapping)
        except UndecodableImageError:
            return None

    return pixels_of


def _table(
    store: MlflowClient, run_id: str, folder: str, into: str, sha256: str | None = None
) -> pd.DataFrame | None:
    """Return the table in a folder of a run's artifacts; None if there is none.

    Args:
        store: the client of the tracking store that has the run.
        run_id: ID of the run.
        folder: a folder among the run's artifacts.
        into: receives the file.
        sha256: the SHA-256 that the file has to have, otherwise None is returned; None accepts any
            file.
    """
    files = [item.path for item in store.list_artifacts(run_id, folder)]
    tables = [path for path in files if path.endswith(".parquet")]
    if not tables:
        return None
    file = Path(store.download_artifacts(run_id, tables[0], into))
    if sha256 is not None and digest_of(file).sha256 != sha256:
        return None
    return pd.read_parquet(file)


def _predict(package: PackagedModel, images: pd.DataFrame, root: Path) -> tuple[Array, Array]:
    """Return which images (N,) can be read, and the package's probabilities of these (R, K)."""
    readable, pixels = np.zeros(len(images), bool), []
    for position, (path, sha256) in enumerate(zip(images["path"], images["sha256"], strict=True)):
        if holds(root, path, sha256):
            # the package may decode it differently
            with suppress(UndecodableImageError), root_image_bytes(root, path) as data:
                pixels.append(package.pixels(data))
                readable[position] = True
    none = np.empty((0, len(package.classes)), np.float32)
    return readable, package.probabilities(np.stack(pixels)) if pixels else none


def _order(own: list[str], classes: tuple[str, ...]) -> Array:
    index = {label: position for position, label in enumerate(own)}
    return np.array([index[label] for label in classes], np.int64)


def _make_missing_error(reference: ModelReference, reason: str) -> ModelReferenceError:
    return ModelReferenceError(
        f"The training data of '{reference.name}' version {reference.version} is no longer "
        f"recorded ({reason}). Restore its run in MLflow, or use another version."
    )
