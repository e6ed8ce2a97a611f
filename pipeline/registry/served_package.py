"""The folder of a version's package on this machine, found without MLflow where possible.

What is not on a disk of this machine is downloaded into the workspace's cache by a process of its
own, because MLflow's import takes seconds and much memory:
`python -P -m patchline.pipeline.registry.served_package NAME VERSION FOLDER [EXPORT]`.

An export of a version (`patchline export`) is among the artifacts of the run that made the version.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import ModelReferenceError, PipelineError, StorageError, error_class
from patchline.pipeline.registry.registry_reader import RegistryReader
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.path_uris import artifact_path
from patchline.pipeline.workspace.files.safe_paths import unsafe_reason
from patchline.pipeline.workspace.files.workspace_folder import make_folder, place

SERVED_FORMS = ("int8", "onnx")
"""Exports that are served in the place of a package."""
EXPORT_FOLDER = "exports"
"""Among the artifacts of a run."""
EXPORTS_RECORD = "patchline.exports"
EXPORTS_TAG = f"mlflow.{EXPORTS_RECORD}"
"""Of a version: its exports by form, in JSON; each has its `folder` among the run's artifacts."""
_KEPT = 4
"""Downloaded packages that are kept, so that a rollback needs no download."""
_SECONDS = 600.0
"""After so long, a download is given up."""
_PART, _LOCK = ".part-", ".lock"
"""A folder so called, with the name of its package behind, is being downloaded into; the process
that does so locks the file beside it."""
_SEPARATOR = "\t"
"""Between the class of an error and its text."""


class MissingExportError(ModelReferenceError):
    """A version without the export that a server is to answer with; the text names no path."""


def served_package(
    reader: RegistryReader, name: str, version: str, form: str | None = None
) -> Path:
    """Return the folder of a package as MLflow stores it, downloaded if necessary.

    Args:
        reader: of the registry.
        name: of the model.
        version: of the model.
        form: of an export that is served in the place of the package.

    Raises:
        MissingExportError: if the version has no such export.
        ModelReferenceError: if there is no such version, or its files are missing.
        ServerAwayError: if the registry does not answer.
        StorageError: if the cache may not be written, or the download takes too long.
    """
    stored = reader.place_of(name, version)
    if stored is None:
        raise ModelReferenceError(
            f"'{name}' has no version {version}. `patchline models {name}` lists its versions."
        )
    if form is not None:
        return _served_export(reader, name, version, form)
    local = artifact_path(stored)
    if local is not None and local.is_dir():
        return local
    if local is not None:
        raise ModelReferenceError(
            f"The files of '{name}' version {version} are gone ({local} does not exist). Restore "
            "them, or use another version."
        )
    return _downloaded(stored, name, version)


def _served_export(reader: RegistryReader, name: str, version: str, form: str) -> Path:
    """Return the folder of an export, downloaded if necessary.

    Raises:
        MissingExportError: if there is none, or its files are gone.
    """
    folder = _export_folder(reader.tag_of(name, version, EXPORTS_TAG), form)
    if folder is None:
        raise MissingExportError(
            f"Version {version} of '{name}' has no export as {form}. Write it with `patchline "
            f"export {name}/{version} --to {form}`, or serve the package itself."
        )
    artifacts = reader.artifacts_of(name, version)
    local = None if artifacts is None else artifact_path(artifacts)
    if local is None:
        return _downloaded(artifacts or "", name, version, folder)
    if not (local / folder).is_dir():
        raise MissingExportError(
            f"The files of the export of '{name}' version {version} as {form} are gone. Write it "
            f"again with `patchline export {name}/{version} --to {form}`."
        )
    return local / folder


def _export_folder(tag: str | None, form: str) -> str | None:
    """Return the folder of an export in a run's artifacts, as a tag of the version has it."""
    try:
        row = json.loads(tag or "{}").get(form) or {}
        folder = str(row.get("folder") or "")
    except (ValueError, AttributeError):  # written by hand
        return None
    parts = folder.split("/")
    is_plain = len(parts) == 2 and parts[0] == EXPORT_FOLDER  # noqa: PLR2004 - two parts
    return folder if is_plain and not unsafe_reason(folder) else None


def _downloaded(stored: str, name: str, version: str, export: str = "") -> Path:
    """Return the folder of a package or an export in the cache, where it is downloaded once."""
    digest = hashlib.sha256(f"{stored} {name} {version} {export}".encode()).hexdigest()[:16]
    cached = place() / "served" / digest
    if not cached.is_dir():
        _download(name, version, cached, export)
    os.utime(cached)
    _keep_newest(cached.parent)
    return cached


def _download(name: str, version: str, target: Path, export: str) -> None:
    with storage_errors(target):
        make_folder(target.parent)
    command = [sys.executable, "-P", "-m", __name__, name, version, str(target), export]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        _remove_abandoned(target.parent)
        raise StorageError(
            f"The files of '{name}' version {version} were not downloaded within {_SECONDS:g} "
            "seconds. Check the connection to the artifact store, and try again."
        ) from error
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines() or [""]
    kind, separator, sentence = lines[-1].partition(_SEPARATOR)
    if separator:
        raise error_class(kind)(sentence)
    raise ModelReferenceError(
        f"The files of '{name}' version {version} cannot be downloaded ({lines[-1][:200]}). "
        "Restore them, or use another version."
    )


def _keep_newest(folder: Path) -> None:
    """Remove all packages but the newest; what is being downloaded is none yet."""
    packages = [each for each in folder.iterdir() if each.is_dir() and each.name[0] != "."]
    packages.sort(key=_modified, reverse=True)
    for old in packages[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _modified(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # another server has removed it
        return 0.0


def _remove_abandoned(folder: Path) -> None:
    """Remove what downloads have left behind whose process was killed."""
    for part in folder.glob(f"{_PART}*"):
        if part.is_dir():
            with file_locks.try_lock(_lock_of(part)) as free:
                if free:
                    shutil.rmtree(part, ignore_errors=True)


def _lock_of(part: Path) -> Path:
    return part.with_name(part.name + _LOCK)


def _main(name: str, version: str, target: Path, export: str) -> None:
    """Download a package or an export, and give it its name once it is whole."""
    from patchline.pipeline.registry.package_download import export_folder, package_folder
    from patchline.pipeline.registry.registered_models import ModelReference

    quiet_libraries.apply()
    redaction.install(streams=True)
    try:
        reference = ModelReference(name, version, f"models:/{name}/{version}")
        part = target.with_name(_PART + target.name)
        with storage_errors(target), file_locks.locked(_lock_of(part)):
            if target.is_dir():  # another process was faster
                return
            shutil.rmtree(part, ignore_errors=True)
            _remove_abandoned(target.parent)
            part.mkdir()
            try:
                if export:
                    given = export_folder(reference, export, str(part))
                else:
                    given = package_folder(reference, part)
                if not given.is_relative_to(part):  # the store is on this machine
                    given = shutil.copytree(given, part / "package")
                given.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except PipelineError as error:
        sys.stderr.write(f"{type(error).__name__}{_SEPARATOR}{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), "".join(sys.argv[4:]))
