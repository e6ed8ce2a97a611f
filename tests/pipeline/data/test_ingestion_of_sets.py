"""Multi-label data through the READ stage: what is decided, said, saved and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.labels.label_sets import MULTI_LABEL


def _config(**data: object) -> RunConfig:
    shapes = {"source": "shapes", "options": {"images": 60}, **data}
    return config_files.validated({"name": "shapes", "data": shapes})


def test_sets_of_labels_are_read_and_said(tmp_path: Path) -> None:
    """Classes are the labels, images without any are used, and the config says the task."""
    data = ingestion.ingest(_config(), tmp_path)
    assert data.task == MULTI_LABEL
    assert data.classes == ("blue", "circle", "green", "red", "square", "triangle")
    assert sum(data.counts.values()) == 60
    said = data.findings()
    assert said[0].startswith("60 images with sets of 6 labels: ")
    assert said[1].startswith("labels: blue (")
    assert said[2].startswith("several labels for each image: ")
    assert any("have no label" in line for line in said)
    assert ingestion.resolve(_config(), data).data.task == MULTI_LABEL
    again = ingestion.ingest(_config(), tmp_path)
    assert again.fingerprint == data.fingerprint


def test_images_keep_their_splits_when_more_are_drawn(tmp_path: Path) -> None:
    """The first pictures are the same in a larger set of them."""
    splits = []
    for images in (60, 90):
        data = ingestion.ingest(_config(options={"images": images}), tmp_path)
        rows = manifests.usable(manifests.load(data.manifest_file))
        splits.append(dict(zip(rows["sha256"], rows["split"], strict=True)))
    assert splits[0].items() <= splits[1].items()


def test_repeated_data_has_the_task_of_its_manifest(tmp_path: Path) -> None:
    """The labels of an earlier manifest are sets, whatever the source says now."""
    data = ingestion.ingest(_config(), tmp_path)
    repeated = ingestion.ingest(_config(manifest=str(data.manifest_file)), tmp_path)
    assert (repeated.task, repeated.classes) == (data.task, data.classes)
    assert repeated.class_counts == data.class_counts
    contrary = _config(manifest=str(data.manifest_file), task="single_label")
    with pytest.raises(ConfigError, match=r"data\.task is single_label, but the labels are those"):
        ingestion.ingest(contrary, tmp_path)


def test_without_labels_for_an_objective_that_uses_none(tmp_path: Path) -> None:
    """Masked autoencoders see the same pictures and no sets."""
    config = config_files.validated(
        {
            "name": "shapes",
            "data": {"source": "shapes", "options": {"images": 60}},
            "objective": {"name": "mae"},
        }
    )
    data = ingestion.ingest(config, tmp_path)
    assert (data.classes, data.class_counts) == ((), {})
    assert "without labels" in data.findings()[0]
