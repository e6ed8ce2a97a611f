"""What a run says about splits, groups and sets of labels before it trains."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from patchline.pipeline import config_files
from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingestion_notes import (
    dominant_groups,
    notes_on_held_out,
    notes_on_sets,
)
from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    encode_labels,
    label_pairs,
)
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.inspection.class_findings import findings_on_classes
from tests.pipeline.data.splits.made_tables import assigned, table


def rows(classes: int, groups: int, images: int = 1) -> pd.DataFrame:
    """Return usable images, each its own content, in the splits that a run makes."""
    units = np.arange(classes * groups).repeat(images).tolist()
    named = [f"g{unit}" * (images > 1) for unit in units]
    return assigned(table([f"c{unit // groups}" for unit in units], group=named))[0]


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (rows(40, 3), ["80 of 120 images are held out (40 for test and 40 for validation)"]),
        (rows(4, 3, 12), ["each class has one in every split, and half of them have at"]),
        (rows(40, 20), []),
    ],
)
def test_most_images_held_out_is_said(images: pd.DataFrame, words: list[str]) -> None:
    """Classes of three images or groups, not those of twenty, nor splits of the source."""
    notes = notes_on_held_out(images, {"test": 0.15, "validation": 0.15}, SINGLE_LABEL)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
    assert notes_on_held_out(images, {}, SINGLE_LABEL) == []


def test_a_group_that_holds_most_images_of_several_classes_is_named() -> None:
    """It is a note of a run, and a finding of an inspection; a group of one class is neither."""
    images = rows(4, 40)
    most, label = images.index % 4 > 0, images["label"]
    images.loc[most & label.isin(["c0", "c2"]), "group"] = "video 7"
    images.loc[most & (label == "c3"), "group"] = "video 8"
    [found] = dominant_groups(images, SINGLE_LABEL)
    assert found.classes == ("c0", "c2")
    assert "group 'video 7' holds most images of 2 classes: c0 (75%), c2 (75%)" in found.sentence
    findings = findings_on_classes(images, pd.Series(data=True, index=images.index), (), 3)
    [finding] = [each for each in findings if each.kind == "imbalance"]
    assert (finding.severity, finding.classes) == ("warning", ("c0", "c2"))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["a", "ab", "c"] * 20, []),
        (["a", "b", ""] * 10, ["10 images have no label: 2.png, 5.png, 8.png and 7 more$"]),
        (
            ["a"] * 30 + ["ab"] * 4 + ["ac"] * 9 + ["b"] * 3,
            [r"2 labels are on fewer than 10.*b \(7\), c \(9\)", r"1 label is .* a \(not on 3\)"],
        ),
    ],
)
def test_what_is_unusual_about_sets_of_labels_is_said(sets: list[str], words: list[str]) -> None:
    """Images without labels, labels on few or on nearly all images; not a rare set."""
    texts = [encode_labels(each) for each in sets]
    rows = pd.DataFrame({"path": [f"{n}.png" for n in range(len(sets))], "label": texts})
    first, *notes = notes_on_sets(rows, label_pairs(texts, MULTI_LABEL))
    assert first.startswith("several labels for each image: ")
    assert all(re.match(word, note) for word, note in zip(words, notes, strict=True))


def _config(**data: object) -> RunConfig:
    shapes = {"source": "shapes", "options": {"images": 60}, **data}
    return config_files.validate_config({"name": "shapes", "data": shapes})


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
