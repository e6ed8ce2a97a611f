"""Tables and exports as people have them, each from its files to a registered model."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import patchline_here

SETTINGS = (
    "--data.image-size", "16", "--preset", "none", "--training.epochs", "1",
    "--evaluation.corruptions", "0", "--model.embed-dim", "16", "--model.depth", "1",
    "--model.num-heads", "2", "--name", "tiny", "--json",
)  # fmt: skip
LABELS = ("blue", "green", "red")
IMAGES = 60
SEVERAL, ONE = "test/mAP", "test/accuracy"

Sets = Sequence[tuple[str, ...]]


def write_pictures(folder: Path, *, one_label: bool = False) -> Sets:
    """Write small pictures with patches in the colours of their labels; return the labels."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    sets = []
    for number in range(IMAGES):
        pixels_HWC = generator.integers(0, 60, (16, 16, 3), dtype=np.uint8)
        chosen = [number % 3] if one_label else np.flatnonzero(generator.random(3) < 0.5)
        for label in chosen:
            top, left = generator.integers(0, 9, 2)
            pixels_HWC[top : top + 7, left : left + 7, 2 - label] = 250
        Image.fromarray(pixels_HWC).save(folder / f"{number:03}.png")
        sets.append(tuple(sorted(LABELS[label] for label in chosen)))
    return sets


def write_rows(file: Path, rows: Sequence[Sequence[object]], **options: str) -> Path:
    """Write a table of text."""
    delimiter = "\t" if file.suffix == ".tsv" else ","
    with file.open("w", newline="", encoding=options.get("encoding", "utf-8")) as opened:
        csv.writer(opened, delimiter=delimiter).writerows(rows)
    return file


def zero_one(sets: Sets, column: str, folder: str = "") -> list[list[object]]:
    """Return rows with a column of 0 and 1 for each label."""
    rows: list[list[object]] = [[column, *LABELS]]
    for number, labels in enumerate(sets):
        rows.append([f"{folder}{number:03}.png", *(int(label in labels) for label in LABELS)])
    return rows


def cells(sets: Sets, separator: str, folder: str = "images/") -> list[list[object]]:
    """Return rows with the labels of each image in one cell."""
    named: list[list[object]] = [
        [f"{folder}{number:03}.png", separator.join(labels)] for number, labels in enumerate(sets)
    ]
    return [["image", "tags"], *named]


def roboflow_classes(top: Path) -> list[str]:
    """Write `_classes.csv` in the folder of each split, with spaces after the commas."""
    for split in ("train", "valid", "test"):
        rows = zero_one(write_pictures(top / split), "filename")
        text = "\n".join(", ".join(map(str, row)) for row in rows)
        (top / split / "_classes.csv").write_text(text + "\n")
        for file in (top / split).glob("*.png"):  # no image may be in two splits
            pixels = np.asarray(Image.open(file)).copy()
            pixels[0, :8] = {"train": 10, "valid": 100, "test": 200}[split]
            pixels[0, 8:] = np.random.default_rng(len(split)).integers(0, 255, (8, 3))
            Image.fromarray(pixels).save(file)
    return [str(top)]


def one_hot(top: Path) -> list[str]:
    """Write Kaggle's table, whose identifiers have no suffix."""
    rows = zero_one(write_pictures(top / "images"), "id")
    plain = [[str(row[0]).removesuffix(".png"), *row[1:]] for row in rows]
    file = write_rows(top / "train.csv", plain)
    return [str(file), "--data.image-folder", "images"]


def bars(top: Path) -> list[str]:
    """Write labels separated by bars."""
    return [str(write_rows(top / "bars.csv", cells(write_pictures(top / "images"), "|")))]


def commas(top: Path) -> list[str]:
    """Write labels separated by commas, in quotes."""
    return [str(write_rows(top / "commas.csv", cells(write_pictures(top / "images"), ",")))]


def spaces(top: Path) -> list[str]:
    """Write labels separated by spaces, which is a question that a flag answers."""
    file = write_rows(top / "spaces.csv", cells(write_pictures(top / "images"), " "))
    return [str(file), "--data.label-separator", "space"]


def json_lists(top: Path) -> list[str]:
    """Write labels as JSON lists."""
    sets = write_pictures(top / "images")
    rows = [[f"images/{n:03}.png", json.dumps(labels)] for n, labels in enumerate(sets)]
    return [str(write_rows(top / "lists.csv", [["image", "labels"], *rows]))]


def list_columns(top: Path) -> list[str]:
    """Write a Parquet file with the images themselves and a list column."""
    sets = write_pictures(top / "images")
    images = [(top / "images" / f"{n:03}.png").read_bytes() for n in range(len(sets))]
    table = {"image": [{"bytes": each, "path": None} for each in images], "labels": sets}
    pq.write_table(pa.table(table), top / "hub.parquet")
    return [str(top / "hub.parquet")]


def several_rows(top: Path) -> list[str]:
    """Write one row for each label of an image, which is a question that a flag answers."""
    sets = write_pictures(top / "images")
    rows = [
        [f"images/{n:03}.png", label] for n, labels in enumerate(sets) for label in labels or ("",)
    ]
    file = write_rows(top / "rows.csv", [["image", "label"], *rows])
    return [str(file), "--data.task", "multi_label"]


def coco(top: Path, sets: Sets, place: str, *, boxes: bool) -> Path:
    """Write COCO JSON, with boxes or labels of whole images."""
    annotations: list[dict[str, object]] = []
    for image, labels in enumerate(sets):
        for label in labels:
            each: dict[str, object] = {"id": len(annotations), "image_id": image}
            each |= {"category_id": LABELS.index(label)}
            annotations.append(each | ({"bbox": [1, 1, 5, 5]} if boxes else {}))
    content = {
        "images": [{"id": n, "file_name": f"{n:03}.png"} for n in range(len(sets))],
        "categories": [{"id": n, "name": label} for n, label in enumerate(LABELS)],
        "annotations": annotations,
    }
    file = top / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def coco_labels(top: Path) -> list[str]:
    """Write COCO JSON without boxes beside its images."""
    sets = write_pictures(top / "images")
    return [str(coco(top, sets, "annotations/instances.json", boxes=False))]


def coco_boxes(top: Path) -> list[str]:
    """Write Roboflow's COCO folder with boxes, which are a question that a flag answers."""
    sets = write_pictures(top)
    coco(top, sets, "_annotations.coco.json", boxes=True)
    return [str(top), "--data.boxes", "labels"]


def label_studio(top: Path) -> list[str]:
    """Write Label Studio's export, whose file names have a prefix; the originals are elsewhere."""
    sets = write_pictures(top / "originals")
    tasks = []
    for number, labels in enumerate(sets):
        result = {"type": "choices", "from_name": "colour", "value": {"choices": list(labels)}}
        image = f"/data/upload/3/{number + 1:08x}-{number:03}.png"
        tasks.append({"data": {"image": image}, "annotations": [{"result": [result]}]})
    (top / "export").mkdir()
    (top / "export" / "project-3.json").write_text(json.dumps(tasks))
    return [str(top / "export" / "project-3.json"), "--data.root", str(top / "originals")]


def workbook(top: Path) -> list[str]:
    """Write an Excel workbook."""
    openpyxl = pytest.importorskip("openpyxl", reason="an extra")
    sheet = openpyxl.Workbook()
    for row in zero_one(write_pictures(top / "images"), "image", "images/"):
        sheet.active.append(row)
    sheet.save(top / "sheet.xlsx")
    return [str(top / "sheet.xlsx")]


def metadata_csv(top: Path) -> list[str]:
    """Write a folder of images with `metadata.csv`, as the library `datasets` reads it."""
    sets = write_pictures(top)
    rows = cells(sets, "|", "")
    rows[0] = ["file_name", "labels"]
    write_rows(top / "metadata.csv", rows)
    return [str(top)]


def metadata_jsonl(top: Path) -> list[str]:
    """Write a folder of images with `metadata.jsonl` and lists in it."""
    sets = write_pictures(top)
    lines = [{"file_name": f"{n:03}.png", "labels": labels} for n, labels in enumerate(sets)]
    (top / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return [str(top)]


def utf_16(top: Path) -> list[str]:
    """Write a table as Excel saves Unicode text, with another alphabet in its labels."""
    sets = [("зелёный", *each) for each in write_pictures(top / "images")]
    file = write_rows(top / "unicode.tsv", cells(sets, ";"), encoding="utf-16")
    return [str(file)]


def latin_1(top: Path) -> list[str]:
    """Write a table in Latin-1, which is a question that a flag answers."""
    sets = [tuple(f"é {label}" for label in each) for each in write_pictures(top / "images")]
    file = write_rows(top / "latin.csv", cells(sets, "|"), encoding="latin-1")
    return [str(file), "--data.encoding", "latin-1"]


def no_header(top: Path) -> list[str]:
    """Write a table whose first line is an image."""
    rows = cells(write_pictures(top / "images"), "|")[1:]
    return [str(write_rows(top / "plain.csv", rows))]


def class_folders(top: Path) -> list[str]:
    """Write a folder for each class, to be learned as sets of one label each."""
    sets = write_pictures(top / "all", one_label=True)
    for number, (label,) in enumerate(sets):
        (top / label).mkdir(exist_ok=True)
        (top / "all" / f"{number:03}.png").rename(top / label / f"{number:03}.png")
    (top / "all").rmdir()
    return [str(top), "--data.task", "multi_label"]


def answers_table(top: Path) -> list[str]:
    """Write the table that `patchline label` keeps: its other columns are not labels."""
    sets = write_pictures(top)
    header = (
        "path", "label", "labeled_by", "labeled_at", "suggestion", "suggestion_probability",
        "source",
    )  # fmt: skip
    rows = [
        [f"{n:03}.png", json.dumps(labels), "me", "2026-01-01T00:00:00Z", "[]", "0.5", "page"]
        for n, labels in enumerate(sets)
    ]
    return [str(write_rows(top / "labels.csv", [header, *rows]))]


def one_label_of_each(top: Path) -> list[str]:
    """Write the labels of one label for each image as 0/1 columns."""
    sets = write_pictures(top / "images", one_label=True)
    return [str(write_rows(top / "one.csv", zero_one(sets, "image", "images/")))]


FORMATS: tuple[tuple[Callable[[Path], list[str]], str], ...] = (
    (roboflow_classes, SEVERAL),
    (one_hot, SEVERAL),
    (bars, SEVERAL),
    (commas, SEVERAL),
    (spaces, SEVERAL),
    (json_lists, SEVERAL),
    (list_columns, SEVERAL),
    (several_rows, SEVERAL),
    (coco_labels, SEVERAL),
    (coco_boxes, SEVERAL),
    (label_studio, SEVERAL),
    (workbook, SEVERAL),
    (metadata_csv, SEVERAL),
    (metadata_jsonl, SEVERAL),
    (utf_16, SEVERAL),
    (latin_1, SEVERAL),
    (no_header, SEVERAL),
    (class_folders, SEVERAL),
    (answers_table, SEVERAL),
    (one_label_of_each, ONE),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "metric"), FORMATS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_format_becomes_a_registered_model(
    write: Callable[[Path], list[str]], metric: str, tmp_path: Path, own_store: None
) -> None:
    """One command takes the files to a registered version, judged by the metric of its task."""
    del own_store
    (tmp_path / "data").mkdir()
    given = write(tmp_path / "data")
    done = patchline_here("run", *given, *SETTINGS, cwd=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert metric in summary["metrics"]
    shown = patchline_here("models", "tiny", "--json", cwd=tmp_path)
    [model] = json.loads(shown.out)["models"]
    assert [each["run_id"] for each in model["versions"]] == [summary["run_id"]]
