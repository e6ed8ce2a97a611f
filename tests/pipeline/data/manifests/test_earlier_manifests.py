"""A run on the data of an earlier one: the same images, labels and splits, or a clear error."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlflow.data
import numpy as np
import pandas as pd
import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.conftest import write_photos
from tests.pipeline.data.test_ingestion import config_of
from tests.plugins.listings import two_classes

pytestmark = pytest.mark.usefixtures("own_store")


def logged(data: IngestedData, folder: Path) -> str:
    """Log the data of a run and return the run's id; the manifest is kept in the store alone."""
    with tracked_run.open_owned_run(RunConfig(name="photos"), folder / "runs", {}) as run:
        tracked_run.log_data(run, "photos", data.fingerprint, data.manifest_file)
    shutil.rmtree(data.manifest_file.parent)
    return run.run_id


def again(photos: Path, work: Path, reference: str, **settings: Any) -> IngestedData:
    """Read the data of an earlier run."""
    return ingestion.ingest(config_of(photos, manifest=reference, **settings), work)


def rows_of(data: IngestedData) -> pd.DataFrame:
    """Return the manifest by path."""
    return manifests.load(data.manifest_file).set_index("path")


def test_a_grown_folder_gives_the_same_data_again() -> None:
    """New images are not used: the same version of the data, splits and pixels, by any name.

    MLflow itself finds the manifest too, by the data set of the run.
    """
    work = Path("work")
    photos = two_classes(12)
    first = ingestion.ingest(config_of(photos), work)
    rows = manifests.load(first.manifest_file)
    config = ingestion.resolve(config_of(photos), first)
    before = np.array(open_images(ingestion.prepare(config, first, work).store))
    run_id = logged(first, work)
    inputs = client().get_run(run_id).inputs
    assert inputs is not None
    [used] = inputs.dataset_inputs
    source: Any = mlflow.data.get_source(used.dataset)  # which leads to the manifest
    pd.testing.assert_frame_equal(manifests.load(Path(source.load())), rows)
    write_photos(photos, classes=3, images=20)
    assert ingestion.ingest(config_of(photos), work).fingerprint != first.fingerprint
    copy = str(Path("copy.parquet").absolute())
    manifests.save(rows, Path(copy))
    for reference, named in ((run_id[:10], run_id), (copy, copy)):
        found = again(photos, Path("other"), reference)
        assert (found.fingerprint, found.classes) == (first.fingerprint, first.classes)
        pd.testing.assert_frame_equal(manifests.load(found.manifest_file), rows)
        config = ingestion.resolve(config_of(photos, manifest=reference), found)
        assert config.data.manifest == named
    after = np.array(open_images(ingestion.prepare(config, found, Path("other")).store))
    assert np.array_equal(before, after)


def test_images_that_changed_are_named_and_can_be_left_out() -> None:
    """One is gone, one has another content; the other images keep their splits."""
    work = Path("work")
    photos = two_classes(12)
    first = ingestion.ingest(config_of(photos), work)
    rows = rows_of(first)
    run_id = logged(first, work)
    gone, other = rows.index[rows["split"] == "train"][:2]
    (photos / gone).unlink()
    (photos / other).write_bytes((photos / other).read_bytes() + b"more")
    with pytest.raises(DataError, match=rf"2 of 24 images of run {run_id[:8]} .*accept changes"):
        again(photos, work, run_id)
    listed = pd.read_csv(work / "manifests/changes.csv").set_index("path")["change"]
    assert dict(listed) == {gone: "missing", other: "changed"}
    found = again(photos, work, run_id, accept=["changes"])
    assert any("2 of 24 images" in note and "left out" in note for note in found.notes)
    now = rows_of(found)
    assert set(now.index[now["status"] == "excluded"]) == {gone, other}
    kept = now[now["status"] == "ok"]
    assert (kept["split"] == rows.loc[kept.index, "split"]).all()
    assert found.fingerprint != first.fingerprint


def test_what_names_no_manifest_is_an_error() -> None:
    """Each error says what to name instead."""
    photos = two_classes(12)
    work = Path("work")
    with tracked_run.open_owned_run(RunConfig(name="photos"), work / "runs", {}) as run:
        pass
    pd.DataFrame({"path": ["a"]}).to_parquet(Path("other.parquet"))
    first = ingestion.ingest(config_of(photos), work)
    damaged = Path("flipped.parquet")
    manifests.load(first.manifest_file).to_parquet(damaged, compression=None)
    damaged.write_bytes(damaged.read_bytes().replace(b".png", b"\xffpng"))
    for reference, message in (
        (run.run_id, "has no manifest in the tracking store"),
        ("none.parquet", "There is no manifest"),
        ("other.parquet", "it has no column label"),
        (str(damaged), r"is not a manifest \(.*UTF8"),
        ("photos@champion", "There is no model version photos@champion"),
        ("nonsense", "There is no run 'nonsense'"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            again(photos, work, reference)
    elsewhere = write_photos(Path("elsewhere"), classes=1, images=1)
    (elsewhere / "across").rename(elsewhere / "along")
    with pytest.raises(DataError, match=r"None of the 24 images .* Give the data of that run"):
        again(elsewhere, work, logged(first, work))


def test_more_can_be_excluded_and_groups_stay_as_they_were() -> None:
    """Images that the table names are left out of the earlier data, whether they are there or not.

    The splits of the others are those of the earlier run, and settings of groups say so.
    """
    work = Path("work")
    photos = two_classes(12)
    table = Path("findings.csv")
    write_text(table, "path,kind,exclude\nacross/003.png,dark,yes\n")
    first = ingestion.ingest(config_of(photos, exclude=str(table)), work)
    before = rows_of(first)
    run_id = logged(first, work)
    write_text(table, "path,kind,exclude\ndown/004.png,blank,yes\ndown/005.png,dark,yes\n")
    (photos / "down/005.png").unlink()
    groups = {"group_pattern": r"(\d+)\.png", "group_near_duplicates": True}
    found = again(photos, work, run_id, exclude=str(table), **groups, label="top")
    now = rows_of(found)
    left_out = {"across/003.png": "dark", "down/004.png": "blank", "down/005.png": "dark"}
    assert dict(now.loc[now["status"] == "excluded", "reason"]) == left_out
    kept = now[now["status"] == "ok"]
    assert (kept["split"] == before.loc[kept.index, "split"]).all()
    assert sum("has no effect, because the splits are those of run" in n for n in found.notes) == 2
    assert any("data.label has no effect, because the labels are" in note for note in found.notes)
