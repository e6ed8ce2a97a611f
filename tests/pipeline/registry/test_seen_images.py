"""Images that a version has seen are left out of its evaluation, in whatever format they come."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from pipeline.data import ingestion
from pipeline.data import manifest as manifests
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


def test_what_the_ancestors_were_trained_on_counts_as_seen(tmp_path: Path) -> None:
    """A version that started from another one's weights has seen their images, in any split."""
    first = make_version("made", tmp_path / "first", manifest=made_manifest())
    other_split = made_manifest(test=range(1000, 1100), train=range(100), validation=range(50, 60))
    second = make_version("made", tmp_path / "second", manifest=other_split)
    third = make_version("made", tmp_path / "third", manifest=made_manifest(test=range(900, 950)))
    store = client()
    runs = [
        str(store.get_model_version(each.name, each.version).run_id)
        for each in (first, second, third)
    ]
    store.set_tag(runs[1], INITIAL_RUN_TAG, runs[0])
    store.set_tag(runs[2], INITIAL_RUN_TAG, runs[1])
    known = load_records(third).manifest
    seen = set(known.loc[known["split"].isin(["train", "validation"]), "sha256"])
    ancestors = (*range(100), *range(900, 950), *range(1000, 1100))
    assert {digest(number) for number in ancestors} <= seen
    assert len(load_records(first).manifest) == len(made_manifest())
