"""Images that a version has seen are left out of its evaluation, in whatever format they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from pipeline.data import ingestion
from pipeline.data import manifest as manifests
from pipeline.data.seen_images import with_seen
from pipeline.evaluation.evaluating import lead
from pipeline.registry.seen_before import seen_before
from pipeline.registry.version_evaluation import EvaluationChoices, select
from pipeline.registry.version_records import load_records
from pipeline.tracking.tracked_run import INITIAL_RUN_TAG
from pipeline.tracking.tracking_store import client
from tests.pipeline.data.test_ingestion import config_of
from tests.pipeline.registry.made_versions import digest, made_manifest, make_version


@pytest.mark.parametrize("knows_pixels", [True, False])
def test_other_formats_of_seen_images_are_left_out(photos: Path, knows_pixels: bool) -> None:
    """By pixels where the manifest of the training knows them, and by the file otherwise."""
    trained = ingestion.ingest(config_of(photos), photos.parent / "work")
    known: pd.DataFrame = manifests.load(trained.manifest_file)
    if not knows_pixels:
        known = known.drop(columns="pixels")
    for file in list(photos.rglob("*.png")):
        Image.open(file).save(file.with_suffix(".bmp"))
        file.unlink()
    data = ingestion.scan(config_of(photos), photos.parent / "work")
    selection = select(data, known, ("across", "down", "rising"), EvaluationChoices())
    assert len(selection.rows) == (trained.counts["test"] if knows_pixels else 60)


def _runs_of(*versions: Any) -> list[str]:
    found = (client().get_model_version(each.name, each.version) for each in versions)
    return [str(each.run_id) for each in found]


def test_what_the_ancestors_were_trained_on_counts_as_seen(tmp_path: Path) -> None:
    """A version that started from another one's weights has seen their images, in any split."""
    first = make_version("made", tmp_path / "first", manifest=made_manifest())
    other_split = made_manifest(test=range(1000, 1100), train=range(100), validation=range(50, 60))
    second = make_version("made", tmp_path / "second", manifest=other_split)
    third = make_version("made", tmp_path / "third", manifest=made_manifest(test=range(900, 950)))
    store, runs = client(), _runs_of(first, second, third)
    store.set_tag(runs[1], INITIAL_RUN_TAG, runs[0])
    store.set_tag(runs[2], INITIAL_RUN_TAG, runs[1])
    known = load_records(third).manifest
    seen = set(known.loc[known["split"].isin(["train", "validation"]), "sha256"])
    ancestors = (*range(100), *range(900, 950), *range(1000, 1100))
    assert {digest(number) for number in ancestors} <= seen
    assert len(load_records(first).manifest) == len(made_manifest())


@pytest.mark.usefixtures("own_store")
def test_images_that_the_initial_weights_have_seen_are_counted(tmp_path: Path) -> None:
    """Trained on by any ancestor, or for a test image used for model selection by one."""
    first, second = (make_version("made", tmp_path / name) for name in ("first", "second"))
    other = make_version(
        "made", tmp_path / "other", manifest=made_manifest(range(10), range(20, 30), range(40, 50))
    )
    store, runs = client(), _runs_of(first, second, other)
    store.set_tag(runs[2], INITIAL_RUN_TAG, runs[1])
    store.set_tag(runs[1], INITIAL_RUN_TAG, runs[0])
    file = tmp_path / "new.parquet"
    same = made_manifest()
    manifests.save(same, file)
    assert seen_before(file, runs[0]) == {}  # the usual warm start: the splits are remembered
    assert seen_before(file, runs[2]) == {"test": 20}
    manifests.save(made_manifest(range(905, 1010), range(50, 60), range(940, 951)), file)
    assert seen_before(file, runs[0]) == {"test": 45 + 10}
    store.log_param(runs[0], "training.refit", "True")
    assert seen_before(file, runs[2]) == {"validation": 10, "test": 45 + 10}
    assert seen_before(file, "0" * 32) is None


def test_optimistic_metrics_are_named(photos: Path) -> None:
    """Images that the initial weights have seen are a note, and the report does not deny them."""
    data = ingestion.ingest(config_of(photos), photos.parent / "work")
    assert with_seen(data, {}) == data
    assert lead(data) == "These images were not used for training or model selection."
    seen = with_seen(data, {"validation": 2, "test": 1})
    assert "2 of the" in seen.notes[-2]
    assert "1 of the" in seen.notes[-1]
    assert "test images was used to train or select the initial weights" in seen.notes[-1]
    assert lead(seen).startswith("1 of these images was used to train or select the initial")
    gone = with_seen(data, None)
    assert "no longer recorded" in gone.notes[-1]
    assert lead(gone).startswith("As far as it is recorded")
