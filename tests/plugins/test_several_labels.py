"""Tables of several labels as people write them: what is understood, said and asked."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from patchline.pipeline.data.manifests.source_listing import with_task
from patchline.pipeline.errors import DataError
from patchline.plugin_api import ImageListing, ListedImage
from tests.plugins.listings import labels_of, listed, refused, table, touched


def _column(cells: Sequence[str]) -> Path:
    """Write a table of images with these cells of labels."""
    rows = [f"{number}.jpg\t{cell}" for number, cell in enumerate(cells)]
    return table("x.tsv", "\n".join(["image\ttags", *rows]) + "\n")


def test_columns_of_zero_and_one_are_labels() -> None:
    """As Roboflow writes `_classes.csv`; what was understood is said, and what is odd."""
    text = "filename, Cat, Dog, Red fox\n1.jpg, 1, 0, 1\n2.jpg, 0, 0, 0\n3.jpg, 0, 0, 0\n"
    found = listed(table("_classes.csv", f"{text}3.jpg, 0, 1, 0\n"))
    assert labels_of(found) == {"1.jpg": ("Cat", "Red fox"), "2.jpg": (), "3.jpg": ("Dog",)}
    notes = "\n".join(found.notes)
    assert "(Cat, Dog, Red fox): 1.jpg has 'Cat' and 'Red fox'" in notes
    assert "1 image has rows with different labels, all of which count, such as 3.jpg" in notes


@pytest.mark.parametrize(("absent", "present"), [("False", "True"), ("-1", "1")])
def test_one_hot_columns_with_one_label_each_are_classes(absent: str, present: str) -> None:
    """As in Kaggle's tables, however 0 and 1 are written; the index of pandas is no label."""
    rows = f"0,1.jpg,{present},{absent},{absent}\n1,2.jpg,{absent},{present},{absent}\n"
    file = table("train.csv", f",image_id,healthy,rust,scab\n{rows}")
    found = listed(file)
    assert labels_of(found) == {"1.jpg": "healthy", "2.jpg": "rust"}
    assert found.empty_classes == ["scab"]
    assert any("each image that is used has exactly one" in note for note in found.notes)
    assert labels_of(listed(file, task="multi_label"))["2.jpg"] == ("rust",)


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize(
    ("labels", "reason"), [((), "has no label"), (("a", "b"), "has several labels, 'a' and 'b'")]
)
@pytest.mark.parametrize("form", ["lists", "columns"])
def test_a_few_exceptions_change_no_task(
    form: str, labels: tuple[str, ...], reason: str, others: int
) -> None:
    """Of 18 images with one label each, one or two other ones: fewer than a tenth are left out."""
    sets = [*([("a",), ("b",)] * 9), *[labels] * others]
    columns = [f"{n}.jpg,{int('a' in each)},{int('b' in each)}" for n, each in enumerate(sets)]
    rows = [f"{n}.jpg\t{json.dumps(each)}" for n, each in enumerate(sets)]
    text = ["image\tlabel", *rows] if form == "lists" else ["image,a,b", *columns]
    found = listed(table("x.tsv" if form == "lists" else "x.csv", "\n".join(text)))
    if others == 1:
        assert set(labels_of(found).values()) == {"a", "b"}
        assert [each.reason for each in found.left_out] == [reason]
    else:
        assert labels_of(found)["19.jpg"] == labels


def test_columns_of_zero_and_one_beside_others_are_a_question() -> None:
    """The flag that answers it is named, and chooses the columns."""
    file = table("x.csv", "image,age,cat,red fox,male\n1.jpg,3,1,1,0\n2.jpg,4,0,,1\n")
    refused(r"--data\.label-columns cat --data\.label-columns 'red fo", file)
    found = listed(file, label_columns=("cat", "red fox"))
    assert labels_of(found) == {"1.jpg": ("cat", "red fox"), "2.jpg": ()}
    assert found.columns["male"] == ["0", "1"]
    assert any("1 cell is empty in the columns of 0 and 1, and read as 0" in n for n in found.notes)
    refused(
        r"Column 'age' of .* holds '3', but a column that stands",
        file,
        label_columns=("age", "cat"),
    )
    refused(r"data\.label_columns is 'dog', but .* has the columns", file, label_columns=("dog",))


@pytest.mark.parametrize("column", ["isTrain", "test", "is_crowd"])
def test_a_column_about_the_row_is_no_label_without_a_question(column: str) -> None:
    """Whether an image is for training is not what it shows; the flags name the others."""
    file = table("x.csv", f"image,cat,dog,{column}\n1.jpg,1,1,0\n2.jpg,0,0,1\n")
    message = rf"3 columns of 0 and 1, .*, and {column} among them, whose name says .* Set --data"
    with pytest.raises(DataError, match=message) as error:
        listed(file)
    assert f"--data.label-columns {column}" not in str(error.value)
    found = listed(file, label_columns=("cat", "dog", column))
    assert labels_of(found) == {"1.jpg": ("cat", "dog"), "2.jpg": (column,)}


@pytest.mark.parametrize("column", ["train", "is_red"])
def test_a_label_that_sounds_alike_is_a_label(column: str) -> None:
    """A train is also a vehicle."""
    file = table("x.csv", f"image,cat,{column}\n1.jpg,1,1\n2.jpg,0,1\n")
    assert labels_of(listed(file)) == {"1.jpg": ("cat", column), "2.jpg": (column,)}


@pytest.mark.parametrize("others", ["cat,dog", "cat"])
def test_a_column_that_would_be_a_label_but_for_one_cell_is_named(others: str) -> None:
    """With the value and the number of its cells, whether others are left or not."""
    cells = "1,0" if "dog" in others else "1"
    last = ["2" if number == 17 else str(number % 2) for number in range(40)]
    rows = [f"{number}.jpg,{cells},{cell}" for number, cell in enumerate(last)]
    refused(
        r"column of 0 and 1 in 'fox', .* '2' in 1 of 40 cells",
        table("x.csv", "\n".join([f"image,{others},fox", *rows])),
    )


def test_uncertain_labels_are_not_read_as_absent() -> None:
    """-1 beside 0, or beside empty cells as in CheXpert, is a third answer: no guess removes it."""
    for absent in ("0", ""):
        file = table("x.csv", f"image,a,b\n1.jpg,1,-1\n2.jpg,0,{absent}\n3.jpg,1,1\n")
        refused(r"column of 0 and 1 in 'b', which holds -1 beside", file)
        refused(r"'b' of .* holds -1 beside 0 or empty", file, label_columns=("a", "b"))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["b; a", "a", "c;b;a", ""], [("a", "b"), ("a",), ("a", "b", "c"), ()]),
        (["a,b", "b", "nan", "a"], [("a", "b"), ("b",), (), ("a",)]),
        (["16 0", "2", "0 2"], [("0", "16"), ("2",), ("0", "2")]),
        (["['a', 'b']", "['b']", ""], [("a", "b"), ("b",), ()]),
        (["a|b", "b|a|0.0", "0.0"], [("a", "b"), ("0.0", "a", "b"), ("0.0",)]),
    ],
)
def test_several_labels_in_a_cell(cells: list[str], expected: list[tuple[str, ...]]) -> None:
    """Separators and lists are told by the cells, which is said, and an empty cell is no label."""
    found = listed(_column([*cells, *cells]))
    assert [image.labels for image in found.images] == [*expected, *expected]
    assert any("holds several labels in a cell" in n and ".jpg has '" in n for n in found.notes)


@pytest.mark.parametrize(
    "cells",
    [
        ["red rose", "white rose", "red tulip", "white tulip"],
        ["tench, Tinca tinca", "goldfish, Carassius auratus", "crane", "shark, white shark"],
        ["Washington, DC", "Portland, OR", "Portland, ME"],
        ["great dane", "dane", "hot dog", "dog"],
        ["AC/DC", "a-b", "c|d", "e"],
    ],
)
def test_names_of_classes_are_never_split(cells: list[str]) -> None:
    """Spaces, commas and other separators in names stay, without a question."""
    assert [*labels_of(listed(_column(cells))).values()] == cells


@pytest.mark.parametrize(
    ("cells", "flag", "first"),
    [
        (["clear a", "haze a b", "clear b a", "cloudy"], "space", ("a", "clear")),
        (["a|b", "a", "a"], "'|'", ("a", "b")),
    ],
)
def test_unclear_separators_are_a_question(
    cells: list[str], flag: str, first: tuple[str, ...]
) -> None:
    """Both answers are named, and each is obeyed; what is not split is said."""
    file = _column(cells)
    question = re.escape(f"--data.label-separator {flag} to learn several labels")
    refused(question + ".*--data.label-separator none", file)
    assert listed(file, label_separator=flag.strip("'")).images[0].labels == first
    for answer in ({"label_separator": "none"}, {"task": "single_label"}):
        assert [*labels_of(listed(file, **answer)).values()] == cells


def test_several_rows_of_an_image_are_a_question() -> None:
    """They are its labels if that is said, and contradictions if one label is to be learned."""
    rows = "1.jpg,a\n1.jpg,b\n2.jpg,a\n3.jpg,\n1.jpg,b\n2.jpg,c\n3.jpg,c\n"
    file = table("x.csv", f"image,label\n{rows}")
    refused(r"2 of 3 images .* several rows .*1\.jpg: 'a' and 'b'\. S", file)
    found = listed(file, task="multi_label")
    assert labels_of(found) == {"1.jpg": ("a", "b"), "2.jpg": ("a", "c"), "3.jpg": ("c",)}
    one = listed(file, task="single_label")
    assert labels_of(one) == {"3.jpg": "c"}
    assert {each.path for each in one.left_out} == {"1.jpg", "2.jpg"}


def test_one_label_for_each_image_leaves_out_those_without(tmp_path: Path) -> None:
    """An annotation without a label often means one that is not finished."""

    def with_labels(*labels: tuple[str, ...]) -> ImageListing:
        images = [ListedImage(f"{n}.jpg", "", labels=each) for n, each in enumerate(labels)]
        columns = {"by": ["ada", "eve", "bob"][: len(images)]}
        return ImageListing("x", tmp_path, images, columns=columns)

    one = with_task(with_labels(("a",), (), ("b",)), "single_label")
    assert [(image.path, image.label) for image in one.images] == [("0.jpg", "a"), ("2.jpg", "b")]
    assert one.columns == {"by": ["ada", "bob"]}
    assert [(each.path, each.reason) for each in one.left_out] == [("1.jpg", "has no label")]
    with pytest.raises(DataError, match=r"1 of 1 images have several labels \(0\.jpg: a, b\)"):
        with_task(with_labels(("a", "b")), "single_label")


@pytest.mark.parametrize("with_names", [False, True])
def test_list_columns_of_parquet(with_names: bool) -> None:
    """Lists of texts, and of class numbers whose names `datasets` keeps in the metadata."""
    touched(".", "1.jpg", "2.jpg", "3.jpg")
    values = [[0, 1], [], [1]] if with_names else [["sea", "sun"], None, ["sun"]]
    written = pa.table({"file_name": ["1.jpg", "2.jpg", "3.jpg"], "labels": values, "x": [1, 2, 3]})
    inner = {"names": ["sea", "sun"], "_type": "ClassLabel"}
    info = {"info": {"features": {"labels": {"feature": inner, "_type": "Sequence"}}}}
    if with_names:
        written = written.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(written, Path("x.parquet"))
    found = listed("x.parquet")
    assert labels_of(found) == {"1.jpg": ("sea", "sun"), "2.jpg": (), "3.jpg": ("sun",)}


def _lines(file: Path | str, **labels: Any) -> Path:
    """Write JSON lines of the labels of images."""
    rows = [{"file_name": f"{name}.jpg", "label": label} for name, label in labels.items()]
    return table(file, "\n".join(map(json.dumps, rows)))


def test_lists_in_json_lines() -> None:
    """A text beside lists is one label; names are merged as in data of one label."""
    labels: Any = {"1": ["Sun", "sea "], "2": "sun", "3": ["sun", "sun", "caf\u00e9", "cafe\u0301"]}
    found = labels_of(listed(_lines("x.jsonl", **labels), merge_classes=True))
    assert found == {"1.jpg": ("sea", "sun"), "2.jpg": ("sun",), "3.jpg": ("caf\u00e9", "sun")}


@pytest.mark.parametrize(
    ("written", "encoding"), [("utf-16", None), ("latin-1", "latin-1"), ("utf-8-sig", "utf-8")]
)
def test_encodings_of_tables(written: str, encoding: str | None) -> None:
    """A byte-order mark tells UTF-16; other encodings are set, and asked for."""
    file = table("x.csv", "image,label\n1.jpg,caf\u00e9\n2.jpg,b\n")
    file.write_bytes(file.read_text("utf-8").encode(written))
    given = {} if encoding is None else {"encoding": encoding}
    assert labels_of(listed(file, **given)) == {"1.jpg": "caf\u00e9", "2.jpg": "b"}
    refused(r"data\.encoding is ascii, but .* is not text in it", file, encoding="ascii")


def test_a_table_without_a_header() -> None:
    """Its columns are numbered; labels may be separated by another delimiter than the columns."""
    file = table("x.csv", "1.jpg,a|b|c\n2.jpg,a|b\n3.jpg,\n")
    expected = {"1.jpg": ("a", "b", "c"), "2.jpg": ("a", "b"), "3.jpg": ()}
    for settings in ({"header": "false"}, {"label_column": "column_2"}):
        assert labels_of(listed(file, label_separator="|", **settings)) == expected


def test_metadata_in_the_folder_of_the_images() -> None:
    """As the library `datasets` reads it; a folder of images beside it is no class."""
    root = Path("pets")
    _lines(root / "metadata.jsonl", **{"1": ["cat", "dog"], "2": []})
    found = listed(root)
    assert (labels_of(found), found.name) == ({"1.jpg": ("cat", "dog"), "2.jpg": ()}, "pets")
    table(root / "metadata.csv", "file_name,label\n1.jpg,a\n")
    refused(r"several tables of its images: metadata\.csv, metadata", root)


def test_tables_in_the_folders_of_splits() -> None:
    """The same name in two of them is two images, in the split of the folder."""
    root = Path("pets")
    for split, value in (("train", 1), ("valid", 0)):
        table(root / split / "_classes.csv", f"file_name,cat,dog\n1.jpg,1,1\n2.jpg,0,{value}\n")
    found = listed(root)
    assert labels_of(found) == {
        "train/1.jpg": ("cat", "dog"), "train/2.jpg": ("dog",),
        "valid/1.jpg": ("cat", "dog"), "valid/2.jpg": (),
    }  # fmt: skip
    assert [image.split for image in found.images] == ["train"] * 2 + ["validation"] * 2
    table(root / "valid/_classes.csv", "file_name,cat,fox\n1.jpg,1,1\n2.jpg,0,0\n")
    refused(r"have different columns: 'dog' and 'fox'", root)


def test_metadata_beside_class_folders_is_a_question() -> None:
    """Both answers are named, and each is obeyed; another table of that name changes nothing."""
    root = touched("pets", "a/1.jpg", "b/2.jpg")
    metadata = root / "metadata.csv"
    metadata.write_text("file_name,label\na/1.jpg,x\nb/2.jpg,y\n")
    refused(r"--data\.label top .* or --data\.source table", root)
    assert labels_of(listed(root, label="top"))["a/1.jpg"] == "a"
    assert labels_of(listed(root, source="table")) == {"a/1.jpg": "x", "b/2.jpg": "y"}
    metadata.write_text("camera,operator\n1,me\n")
    assert labels_of(listed(root))["a/1.jpg"] == "a"


def _book(file: Path, *rows: list[Any]) -> Any:
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    book.save(file)
    touched(file.parent, "1.jpg", "2.jpg")
    return book


def test_workbooks_of_excel() -> None:
    """One sheet is a table; several are a question, and damage is a sentence."""
    file = Path("x.xlsx")
    rows: Any = (["image", "cat", "dog", "note"], ["1.jpg", 1, 1.0], [], ["2.jpg", 0, 0, "=1+1"])
    book = _book(file, *rows)
    found = listed(file, label_columns=("cat", "dog"))
    assert labels_of(found) == {"1.jpg": ("cat", "dog"), "2.jpg": ()}
    book.create_sheet("more").append(["a"])
    book.save(file)
    refused(r"several sheets with cells: 'Sheet' and 'more'", file)
    for content in (b"", file.read_bytes()[:-200]):
        file.write_bytes(content)
        refused("is damaged, or is not an Excel workbook", file)


def test_a_workbook_far_larger_than_its_table_is_read_or_refused_soon() -> None:
    """What a file says about its size is not believed; cells far outside do not fill the memory."""
    file = Path("x.xlsx")
    book = _book(file, ["image", "label"], ["1.jpg", "a"], ["2.jpg", "b"])
    said = file.read_bytes()
    with zipfile.ZipFile(file, "w") as changed, zipfile.ZipFile(io.BytesIO(said)) as whole:
        for name in whole.namelist():
            changed.writestr(name, whole.read(name).replace(b'ref="A1:B3"', b'ref="A1:XFD1048576"'))
    began = time.process_time()
    assert labels_of(listed(file)) == {"1.jpg": "a", "2.jpg": "b"}
    assert time.process_time() - began < 3
    book.active["XFD1"] = "far"
    for number in range(1300):
        book.active.append([f"{number}.jpg", "a"])
    book.save(file)
    refused(r"1,303 rows and a cell in column 16,384, .* Remove the", file)
