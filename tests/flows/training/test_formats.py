"""Exports as people have them, each from its files to a registered model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import patchline_here
from tests.flows.training.tiny_runs import TINY, ran

LABELS = ("blue", "green", "red")


def write_pictures(folder: Path) -> list[list[str]]:
    """Write small pictures with patches in the colours of their labels; return the labels."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    sets = []
    for number in range(60):
        pixels_HWC = generator.integers(0, 60, (16, 16, 3), dtype=np.uint8)
        chosen = np.flatnonzero(generator.random(3) < 0.5)
        for label in chosen:
            top, left = generator.integers(0, 9, 2)
            pixels_HWC[top : top + 7, left : left + 7, 2 - label] = 250
        Image.fromarray(pixels_HWC).save(folder / f"{number:03}.png")
        sets.append([LABELS[label] for label in chosen])
    return sets


def list_columns(top: Path) -> str:
    """Write a Parquet file with the images themselves and a list column."""
    sets = write_pictures(top / "images")
    images = [(top / "images" / f"{n:03}.png").read_bytes() for n in range(len(sets))]
    table = {"image": [{"bytes": each, "path": None} for each in images], "labels": sets}
    pq.write_table(pa.table(table), top / "hub.parquet")
    return f"{top}/hub.parquet"


def coco_boxes(top: Path) -> str:
    """Write Roboflow's COCO folder with boxes, which are a question that a flag answers."""
    sets = write_pictures(top / "coco")
    annotations = [
        {"image_id": image, "category_id": LABELS.index(label), "bbox": [1, 1, 5, 5]}
        for image, labels in enumerate(sets)
        for label in labels
    ]
    content = {
        "images": [{"id": n, "file_name": f"{n:03}.png"} for n in range(len(sets))],
        "categories": [{"id": n, "name": label} for n, label in enumerate(LABELS)],
        "annotations": [{"id": n, **each} for n, each in enumerate(annotations)],
    }
    (top / "coco/_annotations.coco.json").write_text(json.dumps(content))
    return f"{top}/coco --data.boxes labels"


def label_studio(top: Path) -> str:
    """Write Label Studio's export, whose file names have a prefix; the originals are elsewhere."""
    tasks = []
    for number, labels in enumerate(write_pictures(top / "originals")):
        result = {"type": "choices", "from_name": "colour", "value": {"choices": labels}}
        image = f"/data/upload/3/{number + 1:08x}-{number:03}.png"
        tasks.append({"data": {"image": image}, "annotations": [{"result": [result]}]})
    (top / "project-3.json").write_text(json.dumps(tasks))
    return f"{top}/project-3.json --data.root {top}/originals"


@pytest.mark.slow
@pytest.mark.usefixtures("own_store", "prefect_server")
@pytest.mark.parametrize("write", [list_columns, coco_boxes, label_studio])
def test_a_format_becomes_a_registered_model(write: Callable[[Path], str], tmp_path: Path) -> None:
    """One command takes the files to a registered version, judged by the metric of its task."""
    summary, _ = ran(tmp_path, f"{write(tmp_path)} {TINY} --name tiny")
    assert "test/mAP" in summary["metrics"]
    [model] = patchline_here("models", "tiny", "--json", cwd=tmp_path).json["models"]
    assert [each["run_id"] for each in model["versions"]] == [summary["run_id"]]
