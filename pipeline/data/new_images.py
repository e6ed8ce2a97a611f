"""What is new in a folder of images: two manifests compared by content.

An image is known by the SHA-256 of its file: a copy, another name or another date is not new.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pandas as pd

from pipeline.data import manifest as manifests
from pipeline.section import Section
from pipeline.tracking_store import client, store_exists

if TYPE_CHECKING:
    from mlflow import MlflowClient

_TRAINED_BY = "patchline run"
_PAGE = 20
_NAMED_FILES = 5


class NewImages(Section):
    """How the images of now differ from those of an earlier manifest, each content counted once."""

    first: bool
    """Whether there is no earlier manifest: everything is new then."""
    images: int
    """Usable images of now."""
    new: int
    """Those that were not there before."""
    removed: int
    """Those of before that are gone."""
    relabelled: int
    """Those that lie in another class, or in more or fewer classes, than before."""
    new_by_class: dict[str, int]
    """New images by the class that they lie in."""
    relabelled_examples: tuple[str, ...]
    """A few paths of images whose class has changed."""

    def words(self) -> str:
        """Return the counts as a person reads them: `3 new images, 1 removed, 2 relabelled`."""
        parts = [f"{self.new} new image{'' if self.new == 1 else 's'}"]
        parts += [f"{self.removed} removed"] if self.removed else []
        parts += [f"{self.relabelled} relabelled"] if self.relabelled else []
        return ", ".join(parts)


def compare(before: pd.DataFrame | None, now: pd.DataFrame) -> NewImages:
    """Count what is new, gone and relabelled between two manifests.

    Args:
        before: the manifest of the last training, or none.
        now: the manifest of the folder as it is; only usable images count, in both.
    """
    labels_now = _labels(now)
    labels_before = _labels(before) if before is not None else {}
    new = labels_now.keys() - labels_before.keys()
    relabelled = {
        sha256
        for sha256 in labels_now.keys() & labels_before.keys()
        if labels_now[sha256] != labels_before[sha256]
    }
    rows = manifests.usable(now)
    moved = rows.loc[rows["sha256"].isin(relabelled), "path"]
    by_class = rows[rows["sha256"].isin(new)].groupby("label")["sha256"].nunique()
    return NewImages(
        first=before is None,
        images=len(labels_now),
        new=len(new),
        removed=len(labels_before.keys() - labels_now.keys()),
        relabelled=len(relabelled),
        new_by_class={str(label): int(count) for label, count in by_class.items()},
        relabelled_examples=tuple(str(path) for path in moved[:_NAMED_FILES]),
    )


def manifest_of_last_run(experiment: str) -> pd.DataFrame | None:
    """Return the manifest that the newest finished training of an experiment was made with.

    A run whose manifest is gone from the store is passed over.

    Returns:
        None if there is no such run.

    Raises:
        TrackingError: if the store does not answer.
    """
    if not store_exists():
        return None
    store = client()
    found = store.get_experiment_by_name(experiment)
    if found is None:
        return None
    token: str | None = None
    while True:
        page = store.search_runs(
            [found.experiment_id],
            filter_string=(
                f"attributes.status = 'FINISHED' and tags.`mlflow.source.name` = '{_TRAINED_BY}'"
            ),
            order_by=["attributes.end_time DESC"],
            max_results=_PAGE,
            page_token=token,
        )
        for run in page:
            manifest = _manifest(store, run.info.run_id)
            if manifest is not None:
                return manifest
        token = page.token
        if not token:
            return None


def _labels(manifest: pd.DataFrame) -> dict[str, frozenset[str]]:
    """Return the classes that each content lies in, by SHA-256."""
    rows = manifests.usable(manifest)
    grouped = rows.groupby("sha256")["label"].agg(frozenset)
    return {str(sha256): labels for sha256, labels in grouped.items()}


def _manifest(store: MlflowClient, run_id: str) -> pd.DataFrame | None:
    from mlflow.exceptions import MlflowException

    try:
        tables = [
            item.path
            for item in store.list_artifacts(run_id, "data")
            if item.path.endswith(".parquet")
        ]
        if not tables:
            return None
        with tempfile.TemporaryDirectory(prefix="patchline-") as folder:
            manifest: pd.DataFrame = pd.read_parquet(
                store.download_artifacts(run_id, tables[0], folder)
            )
    except (MlflowException, OSError):
        return None
    return manifest
