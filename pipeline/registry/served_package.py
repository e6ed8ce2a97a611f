"""The folder of a version's package on this machine, found without MLflow where possible.

What is not on a disk of this machine is downloaded into the workspace's cache by a process of its
own, because MLflow's import takes seconds and much memory:
`python -P -m patchline.pipeline.registry.served_package NAME VERSION FOLDER`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import ModelReferenceError, PipelineError, error_class
from patchline.pipeline.files.atomic_files import storage_errors
from patchline.pipeline.files.path_uris import artifact_path
from patchline.pipeline.files.workspace_folder import make_folder, place
from patchline.pipeline.registry.registry_reader import RegistryReader

_KEPT = 4
"""Downloaded packages that are kept, so that a rollback needs no download."""
_SECONDS = 600.0
_SEPARATOR = "\t"
"""Between the class of an error and its text."""


def served_package(reader: RegistryReader, name: str, version: str) -> Path:
    """Return the folder of a package as MLflow stores it, downloaded if necessary.

    Raises:
        ModelReferenceError: if there is no such version, or its files are missing.
        ServerAwayError: if the registry does not answer.
        StorageError: if the cache may not be written.
    """
    stored = reader.place_of(name, version)
    if stored is None:
        raise ModelReferenceError(
            f"'{name}' has no version {version}. `patchline models {name}` lists its versions."
        )
    local = artifact_path(stored)
    if local is not None and local.is_dir():
        return local
    if local is not None:
        raise ModelReferenceError(
            f"The files of '{name}' version {version} are gone ({local} does not exist). Restore "
            "them, or use another version."
        )
    digest = hashlib.sha256(f"{stored} {name} {version}".encode()).hexdigest()[:16]
    cached = place() / "served" / digest
    if not cached.is_dir():
        _download(name, version, cached)
    os.utime(cached)
    _keep_newest(cached.parent)
    return cached


def _download(name: str, version: str, target: Path) -> None:
    with storage_errors(target):
        make_folder(target.parent)
    command = [sys.executable, "-P", "-m", __name__, name, version, str(target)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        stdin=subprocess.DEVNULL,
    )
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
    packages = [each for each in folder.iterdir() if each.is_dir()]
    packages.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for old in packages[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _main(name: str, version: str, target: Path) -> None:
    """Download a package, and give it its name once it is whole."""
    from patchline.pipeline.registry.package_download import package_folder
    from patchline.pipeline.registry.registered_models import ModelReference

    quiet_libraries.apply()
    redaction.install(streams=True)
    try:
        reference = ModelReference(name, version, f"models:/{name}/{version}")
        with (
            storage_errors(target),
            tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as part,
        ):
            downloaded = Path(part) / "package"
            shutil.copytree(package_folder(reference), downloaded)
            if not target.is_dir():  # another process was faster
                downloaded.rename(target)
    except PipelineError as error:
        sys.stderr.write(f"{type(error).__name__}{_SEPARATOR}{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
