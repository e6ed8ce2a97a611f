"""The manifests of earlier runs, as the tracking store keeps them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from patchline.pipeline.errors import DataError
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
    newest = [
        training
        for kind in _TRAININGS
        if (training := _newest(store, stored.experiment_id, kind, params or {})) is not None
    ]
    return max(newest, key=lambda training: training.ended).manifest if newest else None


class _Trained(NamedTuple):
    """The manifest of a finished training."""

    ended: int
    """Milliseconds since 1970."""
    manifest: pd.DataFrame


def _newest(
    store: MlflowClient, experiment_id: str, kind: str, params: Mapping[str, str]
) -> _Trained | None:
    """Return the newest finished run that has a manifest, of those that a condition names."""
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
            manifest = _manifest(store, run.info.run_id)
            if manifest is not None:
                return _Trained(int(run.info.end_time or 0), manifest)
        token = page.token
        if not token:
            return None


def manifest_of_run(run_id: str) -> pd.DataFrame | None:
    """Return the manifest of a run; None if it is missing from the store.

    Raises:
        TrackingError: if the store does not respond.
    """
    return _manifest(client(), run_id)


def unlabelled_of_run(run_id: str) -> pd.DataFrame | None:
    """Return the manifest of a run's unlabelled images; None if it had none, or it is missing.

    Raises:
        TrackingError: if the store does not respond.
    """
    return _manifest(client(), run_id, UNLABELLED_FOLDER)


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
        run_id = (
            store.get_model_version_by_alias(name, alias)
            if at
            else store.get_model_version(name, number)
        )
    except MlflowException as error:
        raise DataError(
            f"There is no model version {reference}. `patchline models` lists all of them."
        ) from error
    return str(run_id.run_id) if run_id.run_id else None


def _manifest(store: MlflowClient, run_id: str, folder: str = "data") -> pd.DataFrame | None:
    from mlflow.exceptions import MlflowException

    try:
        tables = [
            item.path
            for item in store.list_artifacts(run_id, folder)
            if item.path.endswith(".parquet")
        ]
        if not tables:
            return None
        with tempfile.TemporaryDirectory(prefix="patchline-") as scratch:
            manifest: pd.DataFrame = pd.read_parquet(
                store.download_artifacts(run_id, tables[0], scratch)
            )
    except (MlflowException, OSError, ValueError, KeyError):  # gone, or a damaged table
        return None
    return manifest
