"""Open a registered package: numpy and onnxruntime, no torch."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ModelReferenceError
from pipeline.packaging.packaged_model import PackagedModel
from pipeline.registry.registered_models import ModelReference


def fetch(reference: ModelReference) -> PackagedModel:
    """Return the packaged model of a version.

    The package's data is read by this Patchline's own code; no code of the package runs.

    Raises:
        ModelReferenceError: if its files are gone, or it is no Patchline package.
    """
    return open_package(reference, package_folder(reference))


def open_package(reference: ModelReference, folder: Path) -> PackagedModel:
    """Return the packaged model of a version whose files are in a folder, as MLflow stores them.

    Raises:
        ModelReferenceError: if it is no Patchline package.
    """
    folder = folder / "artifacts"
    files = [folder / "model.onnx", folder / "model.json"]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == 1:
        raise ModelReferenceError(
            f"The package of '{reference.name}' version {reference.version} lacks its file "
            f"{missing[0]}. Restore it, or use another version."
        )
    if missing:
        raise ModelReferenceError(
            f"'{reference.name}' version {reference.version} was not packaged by Patchline. Use "
            "mlflow to load it, or name another model."
        )
    onnx_file, description_file = files
    try:
        return PackagedModel(onnx_file, description_file)
    except Exception as error:  # onnxruntime documents no class for a file that it cannot read
        raise ModelReferenceError(
            f"The package of '{reference.name}' version {reference.version} is damaged "
            f"({str(error).splitlines()[0][:200]}). Restore it, or use another version."
        ) from error


def package_folder(reference: ModelReference) -> Path:
    """Return the folder of a package as MLflow stores it, fetched to this machine if need be.

    Raises:
        ModelReferenceError: if its files are gone.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    try:
        return Path(download_artifacts(reference.source))
    except (MlflowException, OSError) as error:
        raise ModelReferenceError(
            f"The files of '{reference.name}' version {reference.version} are gone "
            f"({str(error).splitlines()[0][:200]}). Restore them, or use another version."
        ) from error
