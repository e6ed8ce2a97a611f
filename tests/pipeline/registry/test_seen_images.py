"""Images that a version has seen are left out of its evaluation, in whatever format they come."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from pipeline.data import ingestion
from pipeline.data import manifest as manifests
from pipeline.registry.version_evaluation import EvaluationChoices, select
from tests.pipeline.data.test_ingestion import config_of


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
