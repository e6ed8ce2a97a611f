"""Tables of several labels as people write them: what is understood, said and asked."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from patchline.pipeline.config_files import requested
from patchline.pipeline.data.manifests.label_task import with_task
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.errors import ConfigError, DataError
from patchline.plugin_api import ImageListing, ListedImage

Labels = Mapping[str, tuple[str, ...] | str]


def listed(data: Path, **settings: Any) -> ImageListing:
    """Return what a run with the argument DATA would list."""
    flags = {"data": settings} if settings else {}
    config = requested(str(data), preset_name=None, file=None, flags=flags)
    return listing_of(config, data.parent / ".work", labelled=True)


def labels_of(listing: ImageListing) -> dict[str, tuple[str, ...] | str]:
    """Return the labels of each image: a set, or the text of data of one label."""
    return {
        image.path: image.label if image.labels is None else image.labels
        for image in listing.images
    }


def touched(root: Path, *names: str) -> Path:
    """Write files that a source need not open."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"not opened")
    return root


def column(tmp_path: Path, cells: Sequence[str], name: str = "x.tsv") -> Path:
    """Write a table of images with these cells of labels."""
    paths = [f"{number}.jpg" for number in range(len(cells))]
    touched(tmp_path, *paths)
    rows = ["image\ttags", *(f"{path}\t{cell}" for path, cell in zip(paths, cells, strict=True))]
    (tmp_path / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path / name


ZERO_ONE = """filename, Cat, Dog, Red fox
1.jpg, 1, 0, 1
2.jpg, 0, 0, 0
3.jpg, 0, 1, 0
"""


def test_columns_of_zero_and_one_are_labels(tmp_path: Path) -> None:
    """As Roboflow writes `_classes.csv`; what was understood is said with an example."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    (tmp_path / "_classes.csv").write_text(ZERO_ONE)
    found = listed(tmp_path / "_classes.csv")
    assert labels_of(found) == {"1.jpg": ("Cat", "Red fox"), "2.jpg": (), "3.jpg": ("Dog",)}
    assert any(
        "3 columns of 0 and 1 each stand for a label (Cat, Dog, Red fox): 1.jpg has 'Cat' and "
        "'Red fox'" in note
        for note in found.notes
    )


def test_rows_of_one_image_that_differ_are_named(tmp_path: Path) -> None:
    touched(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "x.csv").write_text("image,cat,dog\n1.jpg,1,0\n2.jpg,0,1\n1.jpg,0,1\n")
    found = listed(tmp_path / "x.csv")
    assert labels_of(found) == {"1.jpg": ("cat", "dog"), "2.jpg": ("dog",)}
    said = "x.csv: 1 image has rows with different labels, all of which count, such as 1.jpg"
    assert said in found.notes


@pytest.mark.parametrize(("absent", "present"), [("0.0", "1.0"), ("False", "True"), ("-1", "1")])
def test_one_hot_columns_with_one_label_each_are_classes(
    tmp_path: Path, absent: str, present: str
) -> None:
    """As in Kaggle's tables, however 0 and 1 are written; the index of pandas is no label."""
    touched(tmp_path, "Train_0.jpg", "Train_1.jpg")
    rows = [",image_id,healthy,rust", f"0,Train_0,{present},{absent}"]
    rows += [f"1,Train_1,{absent},{present}"]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    found = listed(tmp_path / "train.csv")
    assert labels_of(found) == {"Train_0.jpg": "healthy", "Train_1.jpg": "rust"}
    assert any("each image has exactly one" in note for note in found.notes)
    several = listed(tmp_path / "train.csv", task="multi_label")
    assert labels_of(several) == {"Train_0.jpg": ("healthy",), "Train_1.jpg": ("rust",)}


def test_columns_of_zero_and_one_beside_others_are_a_question(tmp_path: Path) -> None:
    """The flag that answers it is named, and chooses the columns."""
    touched(tmp_path, "1.jpg", "2.jpg")
    table = tmp_path / "x.csv"
    table.write_text("image,age,cat,red fox,male\n1.jpg,3,1,1,0\n2.jpg,4,0,,1\n")
    flags = r"--data\.label-columns cat --data\.label-columns 'red fox'"
    with pytest.raises(DataError, match=flags):
        listed(table)
    found = listed(table, label_columns=("cat", "red fox"))
    assert labels_of(found) == {"1.jpg": ("cat", "red fox"), "2.jpg": ()}
    assert found.columns["male"] == ["0", "1"]
    assert any("1 cell is empty in the columns of 0 and 1, and read as 0" in n for n in found.notes)
    with pytest.raises(DataError, match=r"Column 'age' of .* holds '3', but a column that stands"):
        listed(table, label_columns=("age", "cat"))
    with pytest.raises(DataError, match=r"data\.label_columns is 'dog', but .* has the columns"):
        listed(table, label_columns=("dog",))


@pytest.mark.parametrize(
    "column", ["is_train", "isTrain", "test", "is_valid", "train_set", "Verified", "is_crowd"]
)
def test_a_column_about_the_row_is_no_label_without_a_question(tmp_path: Path, column: str) -> None:
    """Whether an image is for training is not what it shows; the flags name the others."""
    touched(tmp_path, "1.jpg", "2.jpg")
    table = tmp_path / "x.csv"
    table.write_text(f"image,cat,dog,{column}\n1.jpg,1,1,0\n2.jpg,0,0,1\n")
    message = rf"3 columns of 0 and 1, .*, and {column} among them, whose name says .* Set --data"
    with pytest.raises(DataError, match=message) as error:
        listed(table)
    assert f"--data.label-columns {column}" not in str(error.value)
    found = listed(table, label_columns=("cat", "dog", column))
    assert labels_of(found) == {"1.jpg": ("cat", "dog"), "2.jpg": (column,)}


@pytest.mark.parametrize("column", ["train", "training shoe", "is_red", "inside", "used", "island"])
def test_a_label_that_sounds_alike_is_a_label(tmp_path: Path, column: str) -> None:
    """A train is also a vehicle."""
    touched(tmp_path, "1.jpg", "2.jpg")
    table = tmp_path / "x.csv"
    table.write_text(f"image,cat,{column}\n1.jpg,1,1\n2.jpg,0,1\n")
    assert labels_of(listed(table)) == {"1.jpg": ("cat", column), "2.jpg": (column,)}


def test_splits_as_columns_are_no_labels(tmp_path: Path) -> None:
    """Beside `test`, `train` is no vehicle."""
    touched(tmp_path, "1.jpg", "2.jpg")
    table = tmp_path / "x.csv"
    table.write_text("image,cat,dog,train,test\n1.jpg,1,1,0,1\n2.jpg,0,0,1,0\n")
    with pytest.raises(DataError, match="train, test among them, whose names say"):
        listed(table)


def test_a_column_that_would_be_a_label_but_for_one_cell_is_named(tmp_path: Path) -> None:
    """With the value and the number of its cells, whether others are left or not."""
    names = [f"{number}.jpg" for number in range(40)]
    touched(tmp_path, *names)
    table = tmp_path / "x.csv"
    for columns in ("cat,dog,fox", "cat,fox"):
        cells = ["1,0"] * 40 if "dog" in columns else ["1"] * 40
        last = ["2" if number == 17 else str(number % 2) for number in range(40)]
        rows = zip(names, cells, last, strict=True)
        table.write_text("\n".join([f"image,{columns}", *map(",".join, rows)]) + "\n")
        with pytest.raises(DataError, match=r"column of 0 and 1 in 'fox', .* '2' in 1 of 40 cells"):
            listed(table)


def test_uncertain_labels_are_not_read_as_absent(tmp_path: Path) -> None:
    """-1 beside 0 and 1 is a third answer, as in CheXpert: that is not guessed away."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    table = tmp_path / "x.csv"
    table.write_text("image,a,b\n1.jpg,1,-1\n2.jpg,0,0\n3.jpg,1,1\n")
    with pytest.raises(DataError, match=r"another column of 0 and 1 in 'b', which holds -1 beside"):
        listed(table)
    with pytest.raises(DataError, match=r"'b' of .* holds -1, 0 and 1"):
        listed(table, label_columns=("a", "b"))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["a|b", "a", "b", ""], [("a", "b"), ("a",), ("b",), ()]),
        (["b; a", "a", "c;b;a"], [("a", "b"), ("a",), ("a", "b", "c")]),
        (["a,b", "b", "nan", "a"], [("a", "b"), ("b",), (), ("a",)]),
        (["16 0", "2", "0 2"], [("0", "16"), ("2",), ("0", "2")]),
        (['["a b", "c"]', "[]", '["c"]'], [("a b", "c"), (), ("c",)]),
        (["['a', 'b']", "['b']", ""], [("a", "b"), ("b",), ()]),
        (["a|b", "b|a|0.0", "0.0"], [("a", "b"), ("0.0", "a", "b"), ("0.0",)]),
    ],
)
def test_several_labels_in_a_cell(
    tmp_path: Path, cells: list[str], expected: list[tuple[str, ...]]
) -> None:
    """Separators and lists are told by the cells, which is said, and an empty cell is no label."""
    table = column(tmp_path, [*cells, *cells])
    found = listed(table)
    assert [image.labels for image in found.images] == [*expected, *expected]
    assert any("holds several labels in a cell" in n and ".jpg has '" in n for n in found.notes)


@pytest.mark.parametrize(
    "cells",
    [
        ["oxeye daisy", "common daisy", "daisy", "tulip"],
        ["red rose", "white rose", "red tulip", "white tulip"],
        ["tench, Tinca tinca", "goldfish, Carassius auratus", "crane", "shark, white shark"],
        ["Washington, DC", "Portland, OR", "Portland, ME"],
        ["great dane", "dane", "hot dog", "dog"],
        ["AC/DC", "a-b", "c|d", "e"],
    ],
)
def test_names_of_classes_are_never_split(tmp_path: Path, cells: list[str]) -> None:
    """Spaces, commas and other separators in names stay, without a question."""
    found = listed(column(tmp_path, cells))
    assert [image.label for image in found.images] == cells


@pytest.mark.parametrize(
    ("cells", "flag", "first"),
    [
        (["clear primary", "haze primary water", "clear primary water", "cloudy"], "space", None),
        (["a|b", "a", "a"], "'|'", ("a", "b")),
        (["animal|dog", "animal|cat", "plant|dog"], "'|'", ("animal", "dog")),
    ],
)
def test_unclear_separators_are_a_question(
    tmp_path: Path, cells: list[str], flag: str, first: tuple[str, ...] | None
) -> None:
    """Both answers are named, and each is obeyed."""
    table = column(tmp_path, cells)
    question = re.escape(f"--data.label-separator {flag} to learn several labels")
    with pytest.raises(DataError, match=question + ".*--data.label-separator none"):
        listed(table)
    several = listed(table, label_separator=flag.strip("'"))
    assert several.images[0].labels == (first or ("clear", "primary"))
    one = listed(table, label_separator="none")
    assert [image.label for image in one.images] == cells
    assert [image.label for image in listed(table, task="single_label").images] == cells


def test_several_rows_of_an_image_are_a_question(tmp_path: Path) -> None:
    """They are its labels if that is said, and contradictions if one label is to be learned."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    table = tmp_path / "x.csv"
    table.write_text("image,label\n1.jpg,a\n1.jpg,b\n2.jpg,a\n3.jpg,\n1.jpg,b\n2.jpg,c\n3.jpg,c\n")
    with pytest.raises(DataError, match=r"2 of 3 images .* several rows .*1\.jpg: 'a' and 'b'\. S"):
        listed(table)
    found = listed(table, task="multi_label")
    assert labels_of(found) == {"1.jpg": ("a", "b"), "2.jpg": ("a", "c"), "3.jpg": ("c",)}
    one = listed(table, task="single_label")
    assert labels_of(one) == {"3.jpg": "c"}
    assert {each.path for each in one.left_out} == {"1.jpg", "2.jpg"}


def test_one_label_for_each_image_leaves_out_those_without(tmp_path: Path) -> None:
    """An annotation without a label often means one that is not finished."""
    several = ImageListing(
        "x",
        tmp_path,
        [
            ListedImage(f"{n}.jpg", "", labels=labels)
            for n, labels in enumerate([("a",), (), ("b",)])
        ],
        columns={"by": ["ada", "eve", "bob"]},
    )
    one = with_task(several, "single_label")
    assert [(image.path, image.label) for image in one.images] == [("0.jpg", "a"), ("2.jpg", "b")]
    assert one.columns == {"by": ["ada", "bob"]}
    assert [(each.path, each.reason) for each in one.left_out] == [("1.jpg", "has no label")]
    two = replace(several, images=[ListedImage("0.jpg", "", labels=("a", "b"))])
    with pytest.raises(DataError, match=r"1 of 1 images have several labels \(0\.jpg: a, b\)"):
        with_task(two, "single_label")


@pytest.mark.parametrize("with_names", [False, True])
def test_list_columns_of_parquet(tmp_path: Path, with_names: bool) -> None:
    """Lists of texts, and of class numbers whose names `datasets` keeps in the metadata."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    values = [[0, 1], [], [1]] if with_names else [["sea", "sun"], None, ["sun"]]
    table = pa.table({"file_name": ["1.jpg", "2.jpg", "3.jpg"], "labels": values, "x": [1, 2, 3]})
    inner = {"names": ["sea", "sun"], "_type": "ClassLabel"}
    info = {"info": {"features": {"labels": {"feature": inner, "_type": "Sequence"}}}}
    if with_names:
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, tmp_path / "x.parquet")
    found = listed(tmp_path / "x.parquet")
    assert labels_of(found) == {"1.jpg": ("sea", "sun"), "2.jpg": (), "3.jpg": ("sun",)}


def test_lists_in_json_lines(tmp_path: Path) -> None:
    """A text beside lists is one label; names are merged as in data of one label."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    rows = [
        {"file_name": "1.jpg", "label": ["Sun", "sea "]},
        {"file_name": "2.jpg", "label": "sun"},
        {"file_name": "3.jpg", "label": ["sun", "sun", "caf\u00e9", "cafe\u0301"]},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = listed(tmp_path / "x.jsonl", merge_classes=True)
    cafe = "caf\u00e9"
    assert labels_of(found) == {"1.jpg": ("sea", "sun"), "2.jpg": ("sun",), "3.jpg": (cafe, "sun")}


@pytest.mark.parametrize(
    ("written", "encoding"),
    [
        ("utf-16", None), ("utf-16-le", "utf-16-le"), ("latin-1", "latin-1"),
        ("utf-8-sig", "utf-8"), ("cp932", "cp932"),
    ],
)  # fmt: skip
def test_encodings_of_tables(tmp_path: Path, written: str, encoding: str | None) -> None:
    """A byte-order mark tells UTF-16; other encodings are set, and asked for."""
    touched(tmp_path, "1.jpg", "2.jpg")
    label = "\u82b1" if written == "cp932" else "caf\u00e9"
    table = tmp_path / "x.csv"
    table.write_bytes(f"image,label\n1.jpg,{label}\n2.jpg,b\n".encode(written))
    given = {} if encoding is None else {"encoding": encoding}
    assert labels_of(listed(table, **given)) == {"1.jpg": label, "2.jpg": "b"}
    if encoding not in (None, "utf-8"):
        with pytest.raises(DataError, match=r"Set --data\.encoding"):
            listed(table)
    with pytest.raises(DataError, match=r"data\.encoding is ascii, but .* is not text in it"):
        listed(table, encoding="ascii")


@pytest.mark.parametrize("value", ["base64", "no-such", "rot13"])
def test_an_encoding_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    """Also those that Python knows for bytes."""
    with pytest.raises(ConfigError, match=r"encoding"):
        listed(column(tmp_path, ["a", "b"]), encoding=value)


def test_a_table_without_a_header(tmp_path: Path) -> None:
    """Its columns are numbered; labels may be separated by another delimiter than the columns."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    table = tmp_path / "x.csv"
    table.write_text("1.jpg,a|b|c\n2.jpg,a|b\n3.jpg,\n")
    expected = {"1.jpg": ("a", "b", "c"), "2.jpg": ("a", "b"), "3.jpg": ()}
    assert labels_of(listed(table, header="false", label_separator="|")) == expected
    assert labels_of(listed(table, label_column="column_2", label_separator="|")) == expected
    table.write_text("1,1,0\n2,1,1\n")
    found = listed(table, header="false", image_column="column_1")
    assert labels_of(found) == {"1.jpg": ("column_2",), "2.jpg": ("column_2", "column_3")}


def test_metadata_in_the_folder_of_the_images(tmp_path: Path) -> None:
    """As the library `datasets` reads it; a folder of images beside it is no class."""
    root = touched(tmp_path / "pets", "images/1.jpg", "images/2.jpg")
    rows = [
        {"file_name": "images/1.jpg", "labels": ["cat", "dog"]},
        {"file_name": "images/2.jpg", "labels": []},
    ]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = listed(root)
    assert labels_of(found) == {"images/1.jpg": ("cat", "dog"), "images/2.jpg": ()}
    assert found.name == "pets"
    (root / "metadata.csv").write_text("file_name,label\nimages/1.jpg,a\n")
    with pytest.raises(DataError, match=r"several tables of its images: metadata\.csv, metadata"):
        listed(root)


@pytest.mark.parametrize("name", ["metadata.csv", "_classes.csv"])
def test_tables_in_the_folders_of_splits(tmp_path: Path, name: str) -> None:
    """The same name in two of them is two images, in the split of the folder."""
    for split, value in (("train", 1), ("valid", 0)):
        root = touched(tmp_path / "pets" / split, "1.jpg", "2.jpg").parent
        text = f"file_name,cat,dog\n1.jpg,1,1\n2.jpg,0,{value}\n"
        (root / split / name).write_text(text)
    found = listed(tmp_path / "pets")
    assert labels_of(found) == {
        "train/1.jpg": ("cat", "dog"), "train/2.jpg": ("dog",),
        "valid/1.jpg": ("cat", "dog"), "valid/2.jpg": (),
    }  # fmt: skip
    assert [image.split for image in found.images] == ["train"] * 2 + ["validation"] * 2
    (tmp_path / "pets/valid" / name).write_text("file_name,cat,fox\n1.jpg,1,1\n2.jpg,0,0\n")
    with pytest.raises(DataError, match=r"have different columns: 'dog' and 'fox'"):
        listed(tmp_path / "pets")


def test_metadata_beside_class_folders_is_a_question(tmp_path: Path) -> None:
    """Both answers are named, and each is obeyed; another table of that name changes nothing."""
    root = touched(tmp_path / "pets", "a/1.jpg", "b/2.jpg")
    table = root / "metadata.csv"
    table.write_text("file_name,label\na/1.jpg,x\nb/2.jpg,y\n")
    with pytest.raises(DataError, match=r"--data\.label top .* or --data\.source table"):
        listed(root)
    assert labels_of(listed(root, label="top"))["a/1.jpg"] == "a"
    assert labels_of(listed(root, source="table")) == {"a/1.jpg": "x", "b/2.jpg": "y"}
    table.write_text("camera,operator\n1,me\n")
    assert labels_of(listed(root))["a/1.jpg"] == "a"


def test_workbooks_of_excel(tmp_path: Path) -> None:
    """One sheet is a table; several are a question, and damage is a sentence."""
    openpyxl = pytest.importorskip("openpyxl")
    touched(tmp_path, "1.jpg", "2.jpg")
    book = openpyxl.Workbook()
    for row in (["image", "cat", "dog", "note"], ["1.jpg", 1, 1.0], [], ["2.jpg", 0, 0, "=1+1"]):
        book.active.append(row)
    file = tmp_path / "x.xlsx"
    book.save(file)
    found = listed(file, label_columns=("cat", "dog"))
    assert labels_of(found) == {"1.jpg": ("cat", "dog"), "2.jpg": ()}
    book.create_sheet("more").append(["a"])
    book.save(file)
    with pytest.raises(DataError, match=r"several sheets with cells: 'Sheet' and 'more'"):
        listed(file)
    for content in (b"", b"PK no workbook", file.read_bytes()[:-200]):
        file.write_bytes(content)
        with pytest.raises(DataError, match="is damaged, or is not an Excel workbook"):
            listed(file)


def test_a_workbook_far_larger_than_its_table_is_read_or_refused_soon(tmp_path: Path) -> None:
    """What a file says about its size is not believed; cells far outside do not fill the memory."""
    openpyxl = pytest.importorskip("openpyxl")
    touched(tmp_path, "1.jpg", "2.jpg")
    book, file = openpyxl.Workbook(), tmp_path / "x.xlsx"
    for row in (["image", "label"], ["1.jpg", "a"], ["2.jpg", "b"]):
        book.active.append(row)
    book.save(file)
    said = file.read_bytes()
    with zipfile.ZipFile(file, "w") as changed, zipfile.ZipFile(io.BytesIO(said)) as whole:
        for name in whole.namelist():
            content = whole.read(name).replace(b'ref="A1:B3"', b'ref="A1:XFD1048576"')
            changed.writestr(name, content)
    began = time.process_time()
    assert labels_of(listed(file)) == {"1.jpg": "a", "2.jpg": "b"}
    assert time.process_time() - began < 3
    book.active["XFD1"] = "far"
    for number in range(1300):
        book.active.append([f"{number}.jpg", "a"])
    book.save(file)
    with pytest.raises(DataError, match=r"1,303 rows and a cell in column 16,384, .* Remove the"):
        listed(file)


def test_cells_that_look_like_several_labels_are_said_where_each_is_one(tmp_path: Path) -> None:
    """With one label for each image asked for, `a|b` is a class, which is not what most mean."""
    cells = ["cat", "dog", "cat|dog", "cat", "cat|dog", "dog"]
    found = listed(column(tmp_path, cells), task="single_label")
    assert {image.label for image in found.images} == {"cat", "dog", "cat|dog"}
    said = [note for note in found.notes if "holds '|' in 2 of 6 cells" in note]
    assert said
    assert "such as 'cat|dog', because data.task is single_label" in said[0]
    plain = listed(column(tmp_path, ["cat", "dog", "oxeye daisy"], "y.tsv"), task="single_label")
    assert not any("cells" in note for note in plain.notes)
    told = listed(column(tmp_path, cells, "z.tsv"), task="single_label", label_separator="none")
    assert not any("cells" in note for note in told.notes)
