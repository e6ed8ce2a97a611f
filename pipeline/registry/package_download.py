"""Download and load a registered package with numpy and onnxruntime, without torch."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from patchline.pipeline.errors import (
    ModelReferenceError,
    PipelineError,
    ServerAwayError,
    first_line,
)
from patchline.pipeline.packaging.package_digests import ChangedPackageError
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import ModelReference, run_of
from patchline.pipeline.registry.registry_reading import open_registry
from patchline.pipeline.workers.host.system_errors import system_error
from patchline.pipeline.workspace.files.paths import artifact_path
from patchline.pipeline.workspace.tracking.tracking_store import client


def fetch(reference: ModelReference) -> PackagedModel:
    """Return the packaged model of a version.

    The installed Patchline reads the package's data; no code from the package runs.

    Raises:
        ModelReferenceError: if its files are missing, or it is not a Patchline package.
    """
    return open_package(reference, package_folder(reference))


def open_package(reference: ModelReference, folder: Path) -> PackagedModel:
    """Load the packaged classifier of a version from a folder that MLflow has stored.

    Raises:
        ModelReferenceError: if it is not a Patchline package, or an encoder without classes.
    """
    folder = folder / "artifacts"
    files = [folder / ONNX_FILE, folder / DESCRIPTION_FILE]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == 1:
        raise ModelReferenceError(
            f"The package of '{reference.name}' version {reference.version} lacks the file "
            f"{missing[0]}. Restore it, or use another version."
        )
    if missing:
        raise ModelReferenceError(
            f"'{reference.name}' version {reference.version} was not packaged by Patchline. Load "
            "it with MLflow, or choose another model."
        )
    onnx_file, description_file = files
    try:
        package = PackagedModel(onnx_file, description_file)
    except ChangedPackageError as error:
        raise ModelReferenceError(
            f"The package of '{reference.name}' version {reference.version} is not used: {error}. "
            "Restore it, or use another version."
        ) from error
    except Exception as error:  # onnxruntime documents no exception class for an unreadable file
        raise ModelReferenceError(
            f"The package of '{reference.name}' version {reference.version} is damaged "
            f"({first_line(error)}). Restore it, or use another version."
        ) from error
    if not package.classes:
        raise ModelReferenceError(
            f"'{reference.name}' version {reference.version} is an encoder without classes. Train "
            f"a classifier from it with `patchline run DATA --model.init {reference.name}/"
            f"{reference.version}`."
        )
    return package


def package_folder(reference: ModelReference, into: Path | None = None) -> Path:
    """Return the folder of a package as MLflow stores it, downloaded if necessary.

    Args:
        reference: the version whose package is returned.
        into: an existing folder for a download; by default a new one in the temporary directory,
            which is removed when this process ends.

    Raises:
        ModelReferenceError: if its files are missing.
    """
    place = open_registry().place_of(reference.name, reference.version)
    local = None if place is None else artifact_path(place)
    if local is not None and local.is_dir():
        return local  # MLflow would write a note of the download into it
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    client()  # whose address and credentials the download takes
    try:
        given = temporary_folder() if into is None else into
        folder = Path(download_artifacts(reference.source, dst_path=str(given)))
        if not any(folder.iterdir()):  # of what is not there, MLflow makes an empty folder
            raise FileNotFoundError("none of them was found")
    except (MlflowException, OSError) as error:
        files = f"'{reference.name}' version {reference.version}"
        raise _explain_failure(error, files, "Restore them, or use another version.") from error
    return folder


def temporary_folder() -> Path:
    """Return a new folder in the temporary directory, removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="patchline-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def export_folder(reference: ModelReference, export: str, into: str) -> Path:
    """Return the folder of an export of a version, downloaded from its run.

    Args:
        reference: the version that was exported.
        export: folder among the artifacts of the version's run.
        into: an existing folder.

    Raises:
        ModelReferenceError: if its files are missing.
    """
    from mlflow.exceptions import MlflowException

    try:
        return Path(client().download_artifacts(run_of(reference), export, into))
    except (MlflowException, OSError) as error:
        files = f"the export {export} of '{reference.name}' version {reference.version}"
        raise _explain_failure(error, files, "Write it again with `patchline export`.") from error


def _explain_failure(error: Exception, files: str, remedy: str) -> PipelineError:
    """Return what a failed download means: a server that is away, or files that are gone."""
    away = system_error(error)
    if isinstance(away, ServerAwayError):
        return away
    return ModelReferenceError(f"The files of {files} are gone ({first_line(error)}). {remedy}")
