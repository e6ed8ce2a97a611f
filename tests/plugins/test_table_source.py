"""Tables as data: which columns and files are meant, and what is said if that is not clear."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingestion import prepare, resolve
from patchline.pipeline.data.labels.answers.answer import Answer
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.pipeline.data.manifests.source_listing import with_groups
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.errors import ConfigError, DataError
from patchline.plugins.data_sources.table_reading import image_names
from tests.conftest import write_photos
from tests.plugins.listings import ingested, labels_of, listed, refused, table, touched, two_classes


def _rows(photos: Path) -> list[tuple[str, str]]:
    """Return path and label of each photo."""
    files = sorted(photos.rglob("*.png"))
    return [(file.relative_to(photos).as_posix(), file.parent.name) for file in files]


def _structs(photos: Path, file: Path) -> Path:
    """Write the photos into a Parquet file, as data-set hubs do: bytes, paths, class numbers."""
    rows = _rows(photos)
    names = sorted({label for _, label in rows})
    columns: dict[str, Any] = {
        "image": [{"bytes": (photos / path).read_bytes(), "path": path} for path, _ in rows],
        "label": [names.index(label) for _, label in rows],
        "note": ["x"] * len(rows),
    }
    info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    written = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(written, file, row_group_size=7)
    return file


def _absolute(photos: Path, _: Path) -> Path:
    rows = [f"{photos / path}\t{label}" for path, label in _rows(photos)]
    return table(photos / "list.tsv", "\n".join(["path\tspecies", *rows]))


def _addresses(photos: Path, _: Path) -> Path:
    lines = [
        json.dumps({"file_name": (photos / path).as_uri(), "class": label, "width": 32})
        for path, label in _rows(photos)
    ]
    return table(photos / "metadata.jsonl", "\n".join(lines))


def _paths(photos: Path, _: Path) -> Path:
    paths, labels = zip(*_rows(photos), strict=True)
    written = pa.table({"filename": paths, "target": pa.array(labels).dictionary_encode()})
    pq.write_table(written, photos / "paths.parquet")
    return photos / "paths.parquet"


@pytest.mark.parametrize("write", [_absolute, _addresses, _paths, _structs])
def test_table_is_the_same_data_as_its_folder(write: Callable[[Path, Path], Path]) -> None:
    """Fingerprint, splits and pixels are those of the class folders, named in any way."""
    photos = two_classes(4)
    expected = ingested(photos, "one")
    found = ingested(write(photos, Path("train.parquet")), "two")
    assert (found.fingerprint, found.counts) == (expected.fingerprint, expected.counts)
    (note,) = set(found.notes) - set(expected.notes)
    assert "images from '" in note
    assert "labels from '" in note
    config = resolve(build_config(str(photos), preset_name=None, file=None, flags={}), found)
    assert np.array_equal(
        open_images(prepare(config, found, Path("two"), fresh=True).store)[:],
        open_images(prepare(config, expected, Path("one"), fresh=True).store)[:],
    )
    Image.open(found.example_image).load()


def test_images_in_a_table_are_copied_once() -> None:
    """A second listing opens the copy; a row without an image is left out, rows are names."""
    photos = write_photos(Path("photos"), classes=1, images=2)
    images = [(photos / "across/000.png").read_bytes(), None]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), Path("data.parquet"))
    first = listed("data.parquet")
    assert labels_of(first) == {"0": "a"}
    assert first.left_out == [("1", "the table holds no image for it", "damaged")]
    written = first.root.stat().st_mtime_ns
    second = listed("data.parquet")
    assert (second.root, second.images) == (first.root, first.images)
    assert second.root.stat().st_mtime_ns == written


def test_parquet_files_of_a_folder_are_one_table() -> None:
    """As data-set hubs export them: splits by the files' names, images and classes from all."""
    hub = touched("hub", "data/", "README.md")
    photos = two_classes(4)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000"):
        _structs(photos, hub / f"data/{name}.parquet")
    found = listed(hub)
    assert (found.name, [image.split for image in found.images].count("test")) == ("hub", 8)
    assert [image.label for image in found.images].count("down") == 12
    assert any("splits from 'split'" in note for note in found.notes)


def test_parquet_files_that_do_not_go_together_are_refused() -> None:
    """Other classes or columns in one of them are an error that names it."""
    hub = touched(".", "hub/").joinpath("hub")
    for classes in (2, 3):
        photos = write_photos(Path(f"photos{classes}"), classes=classes, images=2)
        _structs(photos, hub / f"part-{classes}.parquet")
    refused(r"part-3\.parquet has other columns or classes", hub, source="table")
    (hub / "part-3.parquet").rename(hub / "test-3.parquet")
    (hub / "part-2.parquet").write_bytes((hub / "test-3.parquet").read_bytes())
    refused(
        r"test-3\.parquet is named for a split, but .*part-2", hub, source="table"
    )  # its test images would be trained on
    (hub / "rose").mkdir()  # class folders: then it is a folder of images
    refused("is not a table", hub, source="table")


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        (["rose/1.jpg", "./tulip//1.jpg"], ["rose/1.jpg", "tulip/1.jpg"]),
        (["../rose/1.jpg", "tulip\\1.jpg"], ["rose/1.jpg", "tulip/1.jpg"]),
        (["/root/.cache/1.jpg", "C:/2.jpg"], ["1.jpg", "2.jpg"]),
        (["1.jpg", "1.jpg"], ["0.jpg", "1.jpg"]),
        ([".hidden.jpg", "1.exe"], ["0.jpg", "1"]),
    ],
)
def test_stored_paths_become_names(stored: list[str], names: list[str]) -> None:
    """They are used if they are distinct and lead nowhere else; otherwise the rows are counted."""
    assert image_names(stored) == names


def test_names_without_suffix_are_found(tmp_path: Path) -> None:
    """Kaggle's tables: ids in one column, images in a folder beside the table."""
    touched(".", "train/a1.jpg", "train/c3.jpg", "test/d4.jpg", "test/a1x.jpg")
    found = listed(table("labels.csv", "id,breed\na1,pug\nc3,boxer\n"))
    assert labels_of(found) == {"train/a1.jpg": "pug", "train/c3.jpg": "boxer"}
    assert found.name == tmp_path.name
    assert found.notes[1] == "2 images found by name: 'a1' is train/a1.jpg"


def test_same_name_in_two_folders() -> None:
    """The folder with most of the files counts, then that of the table's name, else a setting."""
    touched(".", "test/1.jpg", "test/2.jpg", "train/1.jpg", "train/2.jpg", "train/3.jpg")
    rows = "id,label\n1,a\n2,b\n"
    assert "train/2.jpg" in labels_of(listed(table("x.csv", f"{rows}3,a\n")))
    assert "train/2.jpg" in labels_of(listed(table("train_labels.csv", rows)))
    other = table("y.csv", rows)
    refused(r"'1' in .* may be test/1.jpg or train/1.jpg\. Set --", other)
    found = listed(other, image_folder="test")
    assert (found.root, labels_of(found)) == (other.parent / "test", {"1.jpg": "a", "2.jpg": "b"})
    Path("train/2.jpg").unlink()
    touched(".", "train/4.jpg")
    refused(
        r"'2' .* only found as test/2\.jpg, .*may be another", table("x.csv", f"{rows}3,a\n4,a\n")
    )


def test_files_beside_the_table_s_folder_are_read(tmp_path: Path) -> None:
    """The root is then the nearest folder that holds all files."""
    touched(".", "images/a.jpg", "more/b.jpg", "tables/")
    found = listed(table("tables/x.csv", "image,label\n../images/a.jpg,a\n../more/b.jpg,b\n"))
    assert (found.root, labels_of(found)) == (tmp_path, {"images/a.jpg": "a", "more/b.jpg": "b"})
    again = listed(table("more/x.csv", "image,label\nmore/b.jpg,b\nmore/b.jpg,b\n"))
    assert [again.root / image.path for image in again.images] == [tmp_path / "more/b.jpg"]


def test_splits_and_groups_are_read() -> None:
    """A column `split` with the usual names is used; a group only if it is named."""
    rows = "1.jpg,a,TRAIN,p\n2.jpg,b,val,q\n3.jpg,b,Testing,\n4.jpg,a,,p\n"
    file = table("x.csv", f"image,label,Split,patient\n{rows}")
    found = listed(file, group_column="patient").images
    assert [image.split for image in found] == ["train", "validation", "test", None]
    assert [image.group for image in found] == ["p", "q", None, "p"]
    refused(r"'patient' of .* holds 'p', 'q'\. Use train, validation", file, split_column="patient")


_NO_SPLITS = {"split_column": "none"}


@pytest.mark.parametrize(
    ("column", "cells", "words", "answer", "splits"),
    [
        ("dataset", "train test train", "", {}, "train test train"),
        (
            "split",
            "train test extra",
            r"holds 'extra' in 1 of 3 rows",
            _NO_SPLITS,
            "",
        ),
        ("partition", "0 1 2", r"holds '0', '1' and '2' in 3", _NO_SPLITS, ""),
        (
            *("is_test", "0 1 1", r"split-column is_test \(1 is test, 0 train\)"),
            *({"split_column": "is_test"}, "train test test"),
        ),
        ("fold", "0 1 1", "", {}, ""),
        ("patient_id", "p p q", r"--data\.group-column patient_id", {"group_column": "none"}, ""),
        ("patient_id", "p q r", "", {}, ""),
        ("Lung Lesion", "1.0 1.0 -1.0", "", {}, ""),  # a label, of which not all are certain
        (
            "list",
            "a b c",
            r"test_list\.txt beside it lists 2 of its 3",
            _NO_SPLITS,
            "",
        ),
    ],
)
def test_a_column_or_a_list_of_splits_or_patients_is_not_passed_over(
    column: str, cells: str, words: str, answer: dict[str, str], splits: str
) -> None:
    """It is read, or a question whose answer is obeyed; a column of folds is named."""
    rows = [f"{row}.jpg,{'abb'[row]},{cell}" for row, cell in enumerate(cells.split())]
    file = table("x.csv", "\n".join([f"image,label,{column}", *rows]))
    if column == "list":
        Path("test_list.txt").write_text("images/1.jpg 1\n2.jpg\n")
    if words:
        refused(words, file)
    found = listed(file, **answer)
    assert [image.split or "" for image in found.images] == (splits.split() or [""] * 3)
    assert any("'fold' holds '0' and '1', and is not read" in n for n in found.notes) == (
        column == "fold"
    )


def test_rows_that_contradict_each_other_are_left_out() -> None:
    """A row that is there twice counts once; two labels for an image, or none, are named."""
    rows = ["1.jpg,a", "1.jpg,a", "2.jpg,a", "2.jpg,b", "3.jpg,", "gone.jpg,a"]
    rows += [f"{number}.jpg,b" for number in range(10, 25)]
    found = listed(table("x.csv", "\n".join(["image,label", *rows])))
    assert len(found.images) == 16
    assert {each.path: each.reason for each in found.left_out} == {
        "2.jpg": "has two labels in the table, a and b",
        "3.jpg": "has no label",
        "gone.jpg": "there is no such file",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image,label\n1.jpg,001\n2.jpg,NA\n", {"1.jpg": "001", "2.jpg": "NA"}),
        ('\ufeffimage, label\r\n"1.jpg", "a, b"\r\n2.jpg, c\r\n', {"1.jpg": "a, b", "2.jpg": "c"}),
        ("\n \r\n\nthing;picture\n\na;1.jpg\n \nb;2.jpg\n", {"1.jpg": "a", "2.jpg": "b"}),
    ],
)
def test_csv_files_as_people_write_them(text: str, expected: dict[str, str]) -> None:
    """Separators, quotes and byte-order marks are understood, and labels stay what they are."""
    assert labels_of(listed(table("x.csv", text))) == expected


_LONG = f'{{"image": "\\u001b", "label": "a"}}\n{{"image": "{"x" * 500}.jpg", "label": "b"}}\n'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", "image,label\n", r"has no rows"),
        ("x.csv", "image,label\n1.jpg,a,b\n", r"Line 2 of .* has 3 values, .* 2 columns"),
        ("x.csv", "image,image\n1.jpg,a\n", r"two columns named 'image'"),
        ("x.csv", "image,label\n1.jpg,\xe9t\xe9\n", r"reads .*,été'\)\. Set --data\.enc"),
        ("x.csv", "n,thing,picture\n1,a,1.jpg\n2,b,2.jpg\n", r"holds the labels: n, thing, pict"),
        ("x.csv", "image,Finding Labels,Size[x,y]\n1.jpg,a,2,3\n", r"labels: .*, Size\[x, y\]\."),
        ("x.csv", "image,label\n1.jpg,\n2.jpg,\n", r"gives no image a label in column 'label'"),
        ("x.csv", "image,label\nhttps://a.b/1.jpg,a\n", r"names 'https://a\.b/1\.jpg', .*no"),
        ("x.csv", "image,label\nfile://host/x.png,a\n1.png,b\n", r"cannot be used: .* is file://h"),
        ("x.jsonl", _LONG, r"2 of 2 .* below .*: \\x1b, x{79}…\. Set --data\.image-folder"),
        ("x.jsonl", '{"image": "1.jpg"}\n{"image"\n', r"Line 2 of .* is not JSON"),
        ("x.parquet", "PAR1 no", r"is damaged, or is not a Parquet file"),
    ],
)
def test_table_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    """The sentence names the table, what is wrong and the remedy."""
    touched(".", "1.jpg", "2.jpg")
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=words) as raised:
        listed(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_damaged_tables_end_in_a_sentence(kind: str) -> None:
    """Cut or flipped bytes never crash: a sentence, or other values."""
    touched(".", "1.jpg", "2.jpg")
    images = [{"bytes": bytes([row]) * 50, "path": f"{row}.jpg"} for row in range(9)]
    pq.write_table(pa.table({"image": images, "label": list("abcabcabc")}), Path("whole"))
    texts = {
        "parquet": Path("whole").read_bytes(),
        "csv": b"image,label\n1.jpg,a\n2.jpg,b\n",
        "jsonl": b'{"image":"1.jpg","label":1}\n{"image":"2.jpg","label":2}\n',
    }
    draw = np.random.default_rng(0)
    sentences = []
    for number in range(60):
        data = bytearray(texts[kind])
        if number % 4 == 0:
            data = data[: int(draw.integers(len(data)))]
        for _ in range(int(draw.integers(1, 6)) if data else 0):
            data[int(draw.integers(len(data)))] = int(draw.integers(256))
        Path(f"x.{kind}").write_bytes(data)
        try:
            listed(f"x.{kind}")
        except DataError as error:
            sentences.append(str(error))
    assert len(sentences) > 10
    assert all("\n" not in sentence and sentence.endswith(".") for sentence in sentences)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"label_column": "kind"}, r"data\.label_column is 'kind', .* columns image, label"),
        ({"image_folder": "none"}, r"data\.image_folder is .*none, which is not a folder"),
        ({"encoding": "base64"}, "encoding of text; use"),
        ({"encoding": "no-such"}, "encoding that Python knows; use"),
    ],
)
def test_settings_that_name_nothing_are_refused(settings: dict[str, str], words: str) -> None:
    """A column, a folder and an encoding are looked up."""
    with pytest.raises((DataError, ConfigError), match=words):
        listed(table("x.csv", "image,label\n1.jpg,a\n"), **settings)


def test_settings_stand_beside_the_path_or_below_options() -> None:
    """`data.label_column` is short for `data.options.label_column`, for tables alone."""
    file = Path("run.yaml")
    file.write_text("data: {path: labels.csv, label_column: species}", encoding="utf-8")
    flags = {"data": {"options": {"label_column": "kind"}}}
    given, stronger = (
        build_config(None, preset_name=None, file=file, flags=each).data.options["label_column"]
        for each in ({}, flags)
    )
    assert (given, stronger) == ("species", "kind")
    with pytest.raises(ConfigError, match="label_column"):
        build_config("photos", preset_name=None, file=None, flags={"data": {"label_column": "a"}})


def test_a_table_without_labels_is_read_where_none_are_needed() -> None:
    """Nothing is taken for labels that is not named like them; the rest stays columns."""
    file = table("x.csv", "image,width,height\n1.jpg,32,24\n2.jpg,64,48\n")
    listing = listed(file, labelled=False)
    assert labels_of(listing) == {"1.jpg": "", "2.jpg": ""}
    assert "width" in listing.columns


def test_a_table_of_answers_names_near_duplicates_and_why_images_were_labelled() -> None:
    """Its groups are used, unless there are splits or a pattern or a person names others."""
    answers = AnswersTable(Path("labels.csv"))
    for number, source in enumerate(("random", "uncertain", "random", "random")):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(Path(f"{number}.png"))
        answers.append([Answer(f"{number}.png", "label", ("rose",), source=source)])
    answers.group([["0.png", "1.png"]])
    near = {image.path: image.group for image in listed(answers.file).images}
    assert near["0.png"] == near["1.png"] != near["2.png"]
    assert near["2.png"] is near["3.png"] is None
    assert "uncertain" in listed(answers.file).columns["patchline_label_source"]
    pattern = with_groups(listed(answers.file), r"([12])\.png")
    assert [image.group for image in pattern.images] == ["1", "1", "2", None]
    lines = answers.file.read_text().splitlines()
    for cells, settings, expected in (
        (["patient", "", "p1", "p1", ""], {"group_column": "patient"}, ["p1", "p1", "p1", None]),
        (["split", "train", "test", "", ""], {}, [None] * 4),
    ):
        rows = [f"{line},{cell}" for line, cell in zip(lines, cells, strict=True)]
        found = listed(table("x.csv", "\n".join(rows)), **settings)
        assert [image.group for image in found.images] == expected
