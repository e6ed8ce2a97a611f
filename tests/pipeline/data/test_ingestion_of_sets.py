"""Multi-label data through the READ stage: what is decided, said, saved and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline import config_files
from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.data import ingestion
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
    said = "\n".join(data.findings())
    assert "60 images with sets of 6 labels: " in said
    assert "have no label" in said
    assert ingestion.resolve(_config(), data).data.task == MULTI_LABEL
    plain = _config().model_copy(update={"objective": PluginChoice(name="mae")})
    encoder = ingestion.ingest(plain, tmp_path)  # masked autoencoders see no sets
    assert (encoder.classes, encoder.class_counts) == ((), {})


def test_repeated_data_has_the_task_of_its_manifest(tmp_path: Path) -> None:
    """The labels of an earlier manifest are sets, whatever the source says now."""
    data = ingestion.ingest(_config(), tmp_path)
    repeated = ingestion.ingest(_config(manifest=str(data.manifest_file)), tmp_path)
    assert (repeated.task, repeated.classes) == (data.task, data.classes)
    assert repeated.class_counts == data.class_counts
    contrary = _config(manifest=str(data.manifest_file), task="single_label")
    with pytest.raises(ConfigError, match=r"data\.task is single_label, but the labels are those"):
        ingestion.ingest(contrary, tmp_path)
