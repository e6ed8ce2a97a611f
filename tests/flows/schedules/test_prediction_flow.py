"""Scheduled batch prediction: the table, the words in Prefect, and what a failure leaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import State
from prefect.client.schemas.sorting import ArtifactSort

from patchline.flows.schedules.prediction_flow import PredictionSummary, predict_flow
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.run_memory import live_runs
from tests.conftest import Run, write_photos

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def champion(finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """Return a store whose model `photos` has version 1 as champion: a copy of the shared one."""
    shutil.copy(finished_run.folder / "mlflow.db", tmp_path / "copy.db")
    uri = f"sqlite:///{tmp_path / 'copy.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    store = MlflowClient(uri, uri)
    store.set_registered_model_alias("photos", "champion", "1")
    return store


def _predicted(images: Path, out: Path, **other: Any) -> PredictionSummary:
    found: PredictionSummary = predict_flow(
        model="photos@champion", images=str(images), out=str(out), **other
    )
    return found


def _newest_words(client: SyncPrefectClient) -> str:
    artifacts = client.read_artifacts(
        artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["predictions"])),
        sort=ArtifactSort.CREATED_DESC,
        limit=1,
    )
    return str(artifacts[0].data)


@pytest.mark.usefixtures("champion")
def test_the_table_is_written_and_prefect_says_with_which_version(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Counts by label, damaged images with their reason, the version that the alias was, the file.

    A second run predicts all images again, new ones included.
    """
    images = write_photos(tmp_path / "new", images=4)
    (images / "broken|.jpg").write_bytes(b"\xff\xd8\xff nothing")
    out = tmp_path / "tables" / "labels.csv"
    summary = _predicted(images, out)
    assert (summary.version, summary.images, summary.unreadable) == ("1", 13, 1)
    table = pd.read_csv(out)
    assert (len(table), int(table["label"].notna().sum())) == (13, 12)
    words = _newest_words(client)
    assert "`photos@champion` was version **1**" in words
    assert f"**12** of 13 images in `{images}`" in words
    assert f"`{out}`" in words
    for label, count in table["label"].value_counts().items():
        assert f"| {label} | {count} |" in words
    assert "1 image could not be read" in words
    assert "broken|.jpg" in words
    (images / "broken|.jpg").unlink()
    write_photos(images, classes=1, images=6)
    assert _predicted(images, out).images == 14
    assert len(pd.read_csv(out)) == 14
    assert "could not be read" not in _newest_words(client)


def test_a_parquet_table_replaces_the_old_one_only_when_it_is_whole(
    champion: MlflowClient, tmp_path: Path
) -> None:
    """A run that fails says why in its state, and leaves the table of before and no live run."""
    images = write_photos(tmp_path / "new", classes=1, images=2)
    out = tmp_path / "labels.parquet"
    _predicted(images, out, probabilities=False)
    before = out.read_bytes()
    assert "probabilities" not in pd.read_parquet(out).columns
    champion.delete_registered_model_alias("photos", "champion")
    state: State = predict_flow("photos@champion", str(images), str(out), return_state=True)
    assert state.is_failed()
    assert str(state.message).startswith("'photos' has no alias 'champion'.")
    assert out.read_bytes() == before
    assert live_runs.records(tmp_path / ".patchline") == []


@pytest.mark.usefixtures("champion")
def test_an_empty_inbox_is_no_failure_and_one_without_a_readable_image_is(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Without images the table of before stays; with errors alone somebody has to look at them."""
    inbox, out = tmp_path / "inbox", tmp_path / "labels.csv"
    inbox.mkdir()
    out.write_text("before", encoding="utf-8")
    state: State = predict_flow("photos@champion", str(inbox), str(out), return_state=True)
    assert (state.is_completed(), state.name) == (True, "Nothing to predict")
    assert out.read_text(encoding="utf-8") == "before"
    (inbox / "a.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match="No image in"):
        _predicted(inbox, out)
    assert pd.read_csv(out)["error"].notna().all()
    assert "**0** of 1 images" in _newest_words(client)
