"""Find the weights that `model.init` names, and keep them in the workspace.

They may be a file, a version of a registered model, or a run. What is kept is enough to resume or
reproduce a run after the file has been moved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.models.model_description import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    ModelDescription,
    load_description,
)
from patchline.pipeline.models.pretrained.companion_files import COMPANION_FILES
from patchline.pipeline.models.provenance import (
    Provenance,
    ProvenanceSummary,
    Published,
    as_metadata,
    has_record,
    provenance_of,
)
from patchline.pipeline.registry import package_download, registered_models
from patchline.pipeline.training.initial_weights import named_weights
from patchline.pipeline.training.initial_weights.named_weights import publisher_of
from patchline.pipeline.training.initial_weights.recipe import is_file, is_name
from patchline.pipeline.training.initial_weights.record import (
    RECORD_FILE,
    TENSORS_FILE,
    InitialWeights,
    WeightsKind,
    load_record,
    weights_folder,
    weights_name,
)
from patchline.pipeline.workspace import run_folders
from patchline.pipeline.workspace.files.access import is_readable
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.run_memory import interrupted_runs, stage_keys
from patchline.pipeline.workspace.tracking import liveness
from patchline.pipeline.workspace.tracking.tracked_run import LICENSE_TAG, REGULARIZATION_TAG
from patchline.pipeline.workspace.tracking.tracking_store import client, store_exists
from patchline.pipeline.workspace.workspace import workspace_of

if TYPE_CHECKING:
    import torch


OWN_CHAMPION = "champion"
"""The champion of the run's own model, if there is one."""
OWN_LAYOUT = "Patchline"
_CODE = (
    "patchline.pipeline.models.pretrained",
    "patchline.pipeline.training.initial_weights.finding",
)


SETTING = "model.init"
"""The setting that errors name, unless other weights are sought."""


class Trained(NamedTuple):
    """Weights that Patchline has trained."""

    reference: str
    kind: WeightsKind
    folder: Path
    """Folder that holds `model.safetensors` and `model.json`."""

    @property
    def name(self) -> str:
        """What the weights are, in a few words."""
        return weights_name(self.reference, self.kind)


def find(
    reference: str,
    workspace: Path,
    name: str,
    *,
    sha256: str | None = None,
    num_heads: int | None = None,
    download: bool = False,
) -> InitialWeights | None:
    """Return the weights that a reference names, after keeping them in the workspace.

    Args:
        reference: a file, published weights such as `timm:NAME`, a model version such as
            `flowers@champion`, a run's id or name, or `champion` for the champion of the run's own
            model, which may also be given as NAME@champion.
        workspace: the folder `.patchline`.
        name: the name of the run's own model.
        sha256: SHA-256 of the file, if a run has recorded it.
        num_heads: number of attention heads, for a file that does not say how many it has.
        download: whether published weights may be downloaded.

    Returns:
        None for the champion of the run's own model if there is none yet.

    Raises:
        ConfigError: if there are no such weights, they cannot be read, or they are not those that
            the run has recorded.
    """
    if sha256 and (kept := _read_kept(workspace, sha256)):
        return kept.model_copy(update={"reference": reference})
    if reference in (OWN_CHAMPION, f"{name}@{OWN_CHAMPION}"):
        champion = registered_models.champion_of(name) if store_exists() else None
        if champion is None:
            return None
        reference = f"{name}/{champion}"
    trained = find_trained(reference, workspace)
    if trained is not None:
        record = _of_training(trained, workspace)
    else:
        record = find_converted(reference, workspace, num_heads=num_heads, download=download)
    if sha256 not in (None, record.sha256):
        raise ConfigError(
            f"model.init {reference} has changed since its weights were recorded: the SHA-256 was "
            f"{str(sha256)[:12]}, and is {record.sha256[:12]} now. Restore the file, or remove "
            "record.init_sha256 from the config."
        )
    return record


def find_trained(reference: str, workspace: Path, setting: str = SETTING) -> Trained | None:
    """Return the folder of a model that Patchline has trained: a file, a version or a run.

    Args:
        reference: what names the weights; see `find`.
        workspace: the folder `.patchline`.
        setting: the setting that names the weights, for errors.

    Returns:
        None if the reference names a file from elsewhere, or published weights.

    Raises:
        ConfigError: if there are no such weights.
    """
    if is_name(reference):
        return None
    if not is_file(reference, setting):
        return _find_trained(reference, workspace / "runs", setting)
    file = _check_file(Path(reference).expanduser(), setting)
    if file.name == WEIGHTS_FILE and file.with_name(DESCRIPTION_FILE).is_file():
        return Trained(str(file), "file", file.parent)
    if file.suffix.lower() == ".safetensors" and has_record(file):
        raise ConfigError(
            f"{setting} {file} was saved by Patchline, but the {DESCRIPTION_FILE} that describes "
            f"its model is not beside it. Copy both, and keep the name {WEIGHTS_FILE}."
        )
    return None


def find_converted(
    reference: str,
    workspace: Path,
    *,
    num_heads: int | None = None,
    download: bool = False,
    setting: str = SETTING,
) -> InitialWeights:
    """Return the weights of a file from elsewhere, or published ones, converted and kept.

    Args:
        reference: the file or the name.
        workspace: the folder `.patchline`.
        num_heads: number of attention heads, for a file that does not say how many it has.
        download: whether published weights may be downloaded.
        setting: the setting that names the weights, for errors.

    Raises:
        ConfigError: if there are no such weights, or they cannot be read.
    """
    if is_name(reference):
        named = named_weights.file_of(reference, download=download, setting=setting)
        record = _of_file(reference, named.file, num_heads, workspace, named.license)
        licensed = f"The license of {reference} is {record.license or 'not stated by the library'}."
        return record.model_copy(update={"notes": (*record.notes, licensed)})
    file = _check_file(Path(reference).expanduser(), setting)
    return _of_file(str(file), file, num_heads, workspace)


def _read_kept(workspace: Path, sha256: str) -> InitialWeights | None:
    folder = weights_folder(workspace, sha256)
    workspace_of(folder).fetch_folder(folder)
    try:
        return load_record(folder)
    except FileNotFoundError:
        return None


# -- files -----------------------------------------------------------------------------------------


def _check_file(file: Path, setting: str) -> Path:
    """Return the absolute path of a file that can be read.

    Raises:
        ConfigError: if it is not there, or not a file.
    """
    file = file.absolute()  # not resolved: the link of a cache has its config.json beside it
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ConfigError(
            f"{setting} {file} {what}. Give a file of weights, a model version such as "
            "flowers@champion, or a run."
        )
    if not os.access(file, os.R_OK):
        raise ConfigError(f"{setting} {file} may not be read. Check its permissions.")
    return file


def _of_file(
    reference: str, file: Path, num_heads: int | None, workspace: Path, license_name: str = ""
) -> InitialWeights:
    """Convert a file, unless the workspace has the converted weights already."""
    sha256 = digest_of(file).sha256
    beside = [file.with_name(name) for name in COMPANION_FILES]
    digests = [digest_of(each).sha256 for each in beside if each.is_file()]
    code = " ".join([stage_keys.code(*_CODE), *digests, str(num_heads or "")]).strip()
    kept = _read_kept(workspace, sha256)
    license_name = license_name or (kept.license if kept else "")
    provenance = _find_published(reference, file, sha256, license_name, kept)
    if kept is not None and kept.code == code:
        changes = {"reference": reference, "license": license_name, "provenance": provenance}
        record = kept.model_copy(update=changes)
        if record != kept:
            _write_record(record, workspace)
        return record
    from patchline.pipeline.models.pretrained.layouts import convert

    converted = convert(file, num_heads=num_heads)
    settings = {"name": converted.model, **converted.settings}
    if settings.get("head") == "tanh":
        settings["head"] = "linear"  # of pre-training, replaced for fine-tuning (2010.11929, 3.2)
    record = InitialWeights(
        reference=reference,
        kind="file",
        sha256=sha256,
        layout=converted.layout,
        settings=settings,
        channels=converted.channels,
        image_size=converted.image_size,
        mean=converted.mean,
        std=converted.std,
        grid=converted.grid,
        classes=converted.classes,
        sources=converted.sources,
        skipped=converted.skipped,
        resizing=converted.resizing,
        notes=converted.notes,
        license=license_name,
        provenance=provenance,
        code=code,
    )
    _keep(record, converted.weights, workspace)
    return record


def _find_published(
    reference: str, file: Path, sha256: str, license_name: str, kept: InitialWeights | None
) -> ProvenanceSummary:
    """Return what is known about the training images of a file that Patchline has not trained.

    A file that was published under a known checksum stays recognised in the workspace, also after
    the cache that knows the checksum is gone.
    """
    if name := publisher_of(file, sha256):
        name = reference if is_name(reference) else name
        published = (Published(name=name, sha256=sha256, license=license_name),)
        return Provenance(published=published).summary
    if kept is not None:
        return kept.provenance
    what = (
        f"the checksum of {reference} in the cache is not stated by its publisher"
        if is_name(reference)
        else f"{file.name} (SHA-256 {sha256[:12]}) is a file of unrecognised origin"
    )
    return Provenance.without_record(what).summary


def _keep(
    record: InitialWeights,
    weights: Mapping[str, torch.Tensor],
    workspace: Path,
    provenance: Provenance | None = None,
) -> None:
    """Write the tensors, then the record, which is there only if the tensors are."""
    from patchline.pipeline.workspace.files.sealed_files import write_tensors

    folder = weights_folder(workspace, record.sha256)
    seen = Provenance(provenance.own, provenance.inherited) if provenance else Provenance()
    write_tensors(folder / TENSORS_FILE, weights, as_metadata(seen))
    _write_record(record, workspace)


def _write_record(record: InitialWeights, workspace: Path) -> None:
    folder = weights_folder(workspace, record.sha256)
    record.to_file(folder / RECORD_FILE)
    workspace_of(folder).send_folder(folder)


# -- what Patchline has trained --------------------------------------------------------------------


def _find_trained(reference: str, runs: Path, setting: str) -> Trained:
    """Return the folder of a model version or a run."""
    try:
        version = registered_models.resolve(reference)
    except PipelineError as no_version:
        if Path(reference).expanduser().is_dir() and "/" in reference:
            raise ConfigError(
                f"{setting} {reference} is a folder, and no model version has this name "
                f"({str(no_version).rstrip('.')}). Give a file in the folder, a version or a run."
            ) from no_version
        if any(sign in reference for sign in "@/:"):
            raise ConfigError(f"{setting} {reference} was not found: {no_version}") from no_version
        return _find_trained_by_run(reference, runs, setting)
    folder = package_download.package_folder(version) / "artifacts"
    return Trained(f"{version.name}/{version.version}", "version", folder)


def _find_trained_by_run(reference: str, runs: Path, setting: str) -> Trained:
    try:
        run = interrupted_runs.find_named(reference, runs)
    except ConfigError as error:
        raise ConfigError(
            f"{setting} {reference} is neither a file nor a registered model nor a run. Give the "
            "path of a file, a version such as flowers@champion, or a run's id."
        ) from error
    folder = liveness.folder_of(run) / "package"
    if folder.parents[1] == runs.resolve() and not folder.exists():
        run_folders.fetch(folder.parent, results=True)
    if run.info.status != "FINISHED" or not is_readable(folder / DESCRIPTION_FILE):
        raise ConfigError(
            f"{setting} {reference}: the run {run.info.run_id[:8]} is {run.info.status} and has "
            "no trained model on this machine. Give a finished run, or a model version."
        )
    return Trained(run.info.run_id, "run", folder)


def _of_training(trained: Trained, workspace: Path) -> InitialWeights:
    """Keep the weights of a model that Patchline has trained."""
    from patchline.pipeline.workspace.files.sealed_files import read_tensors

    description = load_description(trained.folder)
    if description.members > 1:
        raise ConfigError(
            f"model.init {trained.reference} is an ensemble of {description.members} models, and "
            "training starts from one. Give a version that is a single model."
        )
    file = trained.folder / WEIGHTS_FILE
    provenance = provenance_of(file, trained.name)
    record = _build_trained_record(trained, description, digest_of(file).sha256, provenance)
    kept = _read_kept(workspace, record.sha256)
    if kept is None or kept.layout != OWN_LAYOUT:
        weights, _ = read_tensors(file)
        _keep(record, weights, workspace, provenance)
    elif record != kept:
        _write_record(record, workspace)
    return record


def _build_trained_record(
    trained: Trained, description: ModelDescription, sha256: str, provenance: Provenance
) -> InitialWeights:
    image, tags = description.image, _tags_of(description.run_id)
    return InitialWeights(
        reference=trained.reference,
        kind=trained.kind,
        sha256=sha256,
        layout=OWN_LAYOUT,
        settings=description.model.architecture().model_dump(mode="json"),
        channels=image.channels,
        image_size=image.height,
        mean=image.mean,
        std=image.std,
        resize=image.resize,
        classes=description.classes,
        run_id="" if tags is None else description.run_id,
        head_only=description.head_only or REGULARIZATION_TAG in (tags or {}),
        license=(tags or {}).get(LICENSE_TAG, "") or provenance.licenses,
        provenance=provenance.summary,
    )


def _tags_of(run_id: str) -> dict[str, str] | None:
    """Return the tags of a run; None if this store has none, as for a file from elsewhere."""
    if not run_id or not store_exists():
        return None
    from mlflow.exceptions import MlflowException

    try:
        return dict(client().get_run(run_id).data.tags)
    except MlflowException:
        return None
