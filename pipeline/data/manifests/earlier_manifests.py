"""The manifests of earlier runs, as the tracking store keeps them, and their data used again.

The images, labels and splits of an earlier run are used again as they were: whatever has been added
since is not used. An image that is gone, or has another content, stops the run, unless changes are
accepted; then it is left out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from pyarrow import parquet

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.data.labels.label_sets import Task
from patchline.pipeline.data.labels.reading_rules import AUTO
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.left_out import STATUS
from patchline.pipeline.data.reading.image_root import holds, is_file
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.terminal_words import by_number, few_names
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.table_cells import table_cell
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.tracking.nested_runs import FINAL, KEY_TAG
from patchline.pipeline.workspace.tracking.tracking_store import client, store_exists

if TYPE_CHECKING:
    from mlflow import MlflowClient


UNLABELLED_FOLDER = "unlabelled"
"""Of a run's artifacts: the manifest of its unlabelled images."""
_TRAININGS = ("tags.`mlflow.source.name` = 'patchline run'", f"tags.`{KEY_TAG}` LIKE '{FINAL}%'")
_PAGE = 20


def manifest_of_last_run(
    experiment: str, params: Mapping[str, str] | None = None
) -> pd.DataFrame | None:
    """Return the manifest of the newest finished training of an experiment.

    That is one of `patchline run`, or the one of several nested runs that was registered: of those,
    only that one has a manifest. Runs whose manifest is missing from the store are skipped.

    Args:
        experiment: its name.
        params: settings that the run must have, by dotted key.

    Returns:
        None if there is no such run.

    Raises:
        TrackingError: if the store does not respond.
    """
    if not store_exists():
        return None
    store = client()
    stored = store.get_experiment_by_name(experiment)
    if stored is None:
        return None
    newest = [_newest(store, stored.experiment_id, kind, params or {}) for kind in _TRAININGS]
    found = [training for training in newest if training is not None]
    return max(found, key=lambda training: training[0])[1] if found else None


def _newest(
    store: MlflowClient, experiment_id: str, kind: str, params: Mapping[str, str]
) -> tuple[int, pd.DataFrame] | None:
    """Return when the newest run ended that a condition names and that has a manifest, and this."""
    conditions = [
        "attributes.status = 'FINISHED'",
        kind,
        *(f"params.`{key}` = '{value}'" for key, value in params.items()),
    ]
    token: str | None = None
    while True:
        page = store.search_runs(
            [experiment_id],
            filter_string=" and ".join(conditions),
            order_by=["attributes.end_time DESC"],
            max_results=_PAGE,
            page_token=token,
        )
        for run in page:
            manifest = manifest_of_run(run.info.run_id)
            if manifest is not None:
                return int(run.info.end_time or 0), manifest
        token = page.token
        if not token:
            return None


def manifest_of_run(run_id: str, folder: str = "data") -> pd.DataFrame | None:
    """Return the manifest of a run; None if it is missing from the store, or damaged.

    Args:
        run_id: the MLflow ID of the run.
        folder: the folder among its artifacts; `UNLABELLED_FOLDER` for its unlabelled images, if it
            had some.

    Raises:
        TrackingError: if the store does not respond.
    """
    from mlflow.exceptions import MlflowException

    store = client()
    try:
        listed = [item.path for item in store.list_artifacts(run_id, folder)]
        tables = [path for path in listed if path.endswith(".parquet")]
        if not tables:
            return None
        with tempfile.TemporaryDirectory(prefix="patchline-") as scratch:
            return pd.read_parquet(store.download_artifacts(run_id, tables[0], scratch))
    except (MlflowException, OSError, ValueError, KeyError):  # gone, or a damaged table
        return None


def run_of_version(reference: str) -> str | None:
    """Return the run that trained a model version such as `flowers@champion` or `flowers/3`.

    Returns:
        None if the text does not name a version.

    Raises:
        DataError: if the registry does not know it.
        TrackingError: if the store does not respond.
    """
    from mlflow.exceptions import MlflowException

    name, at, alias = reference.partition("@")
    if not at:
        name, _, number = reference.rpartition("/")
        if not name or not number.isdecimal():
            return None
    store = client()
    try:
        version = (
            store.get_model_version_by_alias(name, alias)
            if at
            else store.get_model_version(name, number)
        )
    except MlflowException as error:
        raise DataError(
            f"There is no model version {reference}. `patchline models` lists all of them."
        ) from error
    return str(version.run_id) if version.run_id else None


ACCEPTED = "changes"
"""Value of `data.accept` that leaves out what has changed."""
_REASONS = {"missing": "is missing since", "changed": "has changed since"}


class EarlierData(NamedTuple):
    """A manifest, and what names it in the config of the run."""

    manifest: pd.DataFrame
    reference: str
    """The id of its run, or the absolute path of its file."""

    @property
    def task(self) -> Task:
        """Whether its images have one label each, or sets."""
        return manifests.task_of(self.manifest)

    @property
    def words(self) -> str:
        """What the manifest is called in a sentence."""
        if Path(self.reference).is_absolute():
            return self.reference
        return f"run {self.reference[:8]}"


def earlier_data(reference: str, workspace: Path) -> EarlierData:
    """Return the manifest that a user names.

    Args:
        reference: a run (`last`, its id, the beginning of its id, its name), a model version
            (`flowers@champion`, `flowers/3`), or a manifest file.
        workspace: the folder `.patchline`.

    Raises:
        DataError: if there is no such manifest.
        ConfigError: if no run or several match.
        TrackingError: if the store does not respond.
    """
    file = Path(reference).expanduser()
    if file.suffix == ".parquet":
        return EarlierData(_read(file), str(file.resolve()))
    run_id = run_of_version(reference)
    if run_id is None:
        run_id = str(interrupted_runs.find_named(reference, workspace / "runs").info.run_id)
    earlier_rows = manifest_of_run(run_id)
    if earlier_rows is None:
        raise DataError(
            f"The run {run_id[:8]} has no manifest in the tracking store. Name another run, or "
            "leave out data.manifest."
        )
    return EarlierData(_complete(earlier_rows), run_id)


def reuse_manifest(
    config: RunConfig,
    earlier: EarlierData,
    root: Path,
    workspace: Path,
    on_progress: manifests.Progress | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest as it is now, and what a person should know.

    Args:
        config: says whether changes are accepted.
        earlier: the manifest.
        root: the folder or archive that holds the images now.
        workspace: receives a list of what has changed.
        on_progress: called after each image.

    Raises:
        DataError: if images are missing or have changed, and that is not accepted.
        ConfigError: if another task is asked for than that of its labels.
    """
    if config.data.task not in (AUTO, earlier.task):
        raise ConfigError(
            f"data.task is {config.data.task}, but the labels are those of {earlier.words}, which "
            f"is {earlier.task}. Leave data.task out, or leave out data.manifest."
        )
    manifest = earlier.manifest.copy()
    used = manifest.index[manifest["status"] == "ok"]
    reasons = _changes(root, manifest.loc[used], on_progress)
    changes = {row: what for row, what in zip(used, reasons, strict=True) if what}
    notes = _find_unused_settings(config, earlier)
    if not changes:
        return manifest, [f"the images, labels and splits are those of {earlier.words}", *notes]
    listed = manifest.loc[list(changes), ["path"]].assign(change=list(changes.values()))
    file = workspace / "manifests" / "changes.csv"
    with replace_file(file) as temporary:
        listed.map(lambda cell: table_cell(str(cell))).to_csv(temporary, index=False)
    counted = (
        f"{len(changes):,} of {len(used):,} images of {earlier.words} "
        f"{by_number(len(changes), 'is missing or has', 'are missing or have')} changed: "
        f"{few_names(listed['path'], 3)}"
    )
    if len(changes) == len(used) and set(reasons) == {"missing"}:
        raise DataError(
            f"None of the {len(used):,} images of {earlier.words} is below {root}. Give the data "
            "of that run, or its config.yaml with --config."
        )
    if ACCEPTED not in config.data.accept:
        raise DataError(
            f"{counted}; all are in {file}. Restore them below {root}, or leave them out with "
            f"--data.accept {ACCEPTED}."
        )
    for row, what in changes.items():
        manifest.loc[row, ["status", "reason", "split"]] = [STATUS, _REASONS[what], ""]
    return manifest, [f"{counted}; they are left out, and listed in {file}", *notes]


def _find_unused_settings(config: RunConfig, earlier: EarlierData) -> list[str]:
    """Name the settings that decide nothing where the splits and the labels are given."""
    unset = DataConfig()
    given = {
        "splits": ("group_pattern", "group_near_duplicates"),
        "labels": ("label", "merge_classes", "no_label"),
    }
    return [
        f"data.{name} has no effect, because the {what} are those of {earlier.words}"
        for what, names in given.items()
        for name in names
        if getattr(config.data, name) != getattr(unset, name)
    ]


def _changes(
    root: Path, rows: pd.DataFrame, on_progress: manifests.Progress | None
) -> list[str | None]:
    """Return for each row whether its file is missing or has changed; None if neither."""

    def change(path: str, sha256: str) -> str | None:
        if holds(root, path, sha256):
            return None
        return "changed" if is_file(root, path) else "missing"

    reasons: list[str | None] = []
    with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
        for each in pool.map(change, rows["path"], rows["sha256"], chunksize=64):
            reasons.append(each)
            if on_progress:
                on_progress(len(reasons), len(rows))
    return reasons


def _read(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise DataError(f"There is no manifest {file}. Check the path, or name a run.")
    try:
        parquet.read_table(file).validate(full=True)  # pandas decodes texts only when they are used
        return _complete(manifests.load(file))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{file} is not a manifest ({' '.join(str(error).split())[:150]}). Name a run, or a "
            "file from the folder data of a run in MLflow."
        ) from error


def _complete(manifest: pd.DataFrame) -> pd.DataFrame:
    """Return a manifest if it has all columns.

    Raises:
        ValueError: otherwise.
    """
    missing = [name for name in manifests.COLUMNS if name not in manifest]
    if missing:
        raise ValueError(f"it has no column {missing[0]}")
    return manifest
