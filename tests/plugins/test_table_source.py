"""Tables as data: which columns and files are meant, and what is said if that is not clear."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import check_source, ingest, prepare, resolve
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.groups import with_groups
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.labelling.answer import Answer
from patchline.pipeline.labelling.answers_table import AnswersTable
from patchline.plugin_api import ImageListing, SourceContext
from patchline.plugins.data_sources.embedded_images import image_names
from patchline.plugins.data_sources.table import ImageTable, TableConfig
from patchline.plugins.data_sources.table_reading import parquet_errors
from tests.conftest import write_photos

Rows = Sequence[tuple[str, ...]]


def ingested(data: Path, work: Path, **settings: Any) -> IngestedData:
    """Return what the ingestion says about the argument DATA."""
    flags = {"data": settings} if settings else {}
    config = requested(str(data), preset_name=None, file=None, flags=flags)
    check_source(config, work)
    return ingest(config, work)


def listed(table: Path, *, needs_labels: bool = True, **settings: Any) -> ImageListing:
    """Return what the source lists."""
    context = SourceContext(str(table), table.parent / ".work", needs_labels=needs_labels)
    context.work_dir.mkdir(exist_ok=True)
    return ImageTable(TableConfig(**settings), context).list_images()


def by_path(listing: ImageListing) -> dict[str, str]:
    """Return the label of each path."""
    return {image.path: image.label for image in listing.images}


def csv_of(file: Path, *rows: Sequence[str], delimiter: str = ",") -> Path:
    """Write a CSV file."""
    text = "\n".join(delimiter.join(row) for row in rows) + "\n"
    file.write_text(text, encoding="utf-8")
    return file


def touched(root: Path, *paths: str) -> Path:
    """Write files that a source need not open."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"not opened")
    return root


def photo_rows(photos: Path) -> list[tuple[str, str]]:
    """Return path and label of each photo."""
    files = sorted(photos.rglob("*.png"))
    return [(file.relative_to(photos).as_posix(), file.parent.name) for file in files]


def parquet_of(file: Path, photos: Path, kind: str) -> Path:
    """Write the photos into a Parquet file, as bytes or as structs of bytes and path."""
    rows = photo_rows(photos)
    contents = [(photos / path).read_bytes() for path, _ in rows]
    names = sorted({label for _, label in rows})
    columns: dict[str, Any] = {
        "image": [
            {"bytes": content, "path": path}
            for (path, _), content in zip(rows, contents, strict=True)
        ],
        "label": [names.index(label) for _, label in rows],
        "note": ["x"] * len(rows),
    }
    metadata = {}
    if kind == "struct":
        feature = {"names": names, "_type": "ClassLabel"}
        metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    else:
        columns["image"] = contents
        columns["label"] = [label for _, label in rows]
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, file, row_group_size=7)
    return file


def _relative(photos: Path) -> Path:
    return csv_of(photos / "labels.csv", ("image", "label"), *photo_rows(photos))


def _absolute(photos: Path) -> Path:
    rows = [(str(photos / path), label) for path, label in photo_rows(photos)]
    return csv_of(photos / "list.tsv", ("path", "species"), *rows, delimiter="\t")


def _addresses(photos: Path) -> Path:
    lines = [
        json.dumps({"file_name": (photos / path).as_uri(), "class": label, "width": 32})
        for path, label in photo_rows(photos)
    ]
    file = photos / "metadata.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def _parquet_paths(photos: Path) -> Path:
    paths, labels = zip(*photo_rows(photos), strict=True)
    table = pa.table({"filename": paths, "target": pa.array(labels).dictionary_encode()})
    pq.write_table(table, photos / "paths.parquet")
    return photos / "paths.parquet"


def _parquet_structs(photos: Path) -> Path:
    return parquet_of(photos.parent / "train.parquet", photos, "struct")


@pytest.mark.parametrize(
    "write", [_relative, _absolute, _addresses, _parquet_paths, _parquet_structs]
)
def test_table_is_the_same_data_as_its_folder(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    """Fingerprint, splits and pixels are those of the class folders, named in any way."""
    photos = write_photos(tmp_path / "photos", classes=2, images=8)
    expected = ingested(photos, tmp_path / "one")
    found = ingested(write(photos), tmp_path / "two")
    assert found.fingerprint == expected.fingerprint
    assert found.counts == expected.counts
    (note,) = set(found.notes) - set(expected.notes)
    assert "images from '" in note
    assert "labels from '" in note
    config = resolve(requested(str(photos), preset_name=None, file=None, flags={}), found)
    assert np.array_equal(
        open_images(prepare(config, found, tmp_path / "two", fresh=True).store)[:],
        open_images(prepare(config, expected, tmp_path / "one", fresh=True).store)[:],
    )
    Image.open(found.example_image).load()


def test_images_as_plain_bytes(tmp_path: Path) -> None:
    """A column of bytes without paths has the same images and splits; rows are their names."""
    photos = write_photos(tmp_path / "photos", classes=2, images=8)
    table = parquet_of(tmp_path / "data.parquet", photos, "bytes")
    found = ingested(table, tmp_path / "work")
    assert found.counts == ingested(photos, tmp_path / "other").counts
    assert found.class_counts == {"across": 8, "down": 8}
    assert sorted(by_path(listed(table)))[:2] == ["00", "01"]


def test_images_in_a_table_are_copied_once(tmp_path: Path) -> None:
    """A second listing opens the copy; a row without an image is left out."""
    photos = write_photos(tmp_path / "photos", classes=1, images=2)
    images = [{"bytes": (photos / "across/000.png").read_bytes(), "path": None}, None]
    pq.write_table(pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "data.parquet")
    first = listed(tmp_path / "data.parquet")
    assert by_path(first) == {"0": "a"}
    assert first.left_out == [("1", "the table holds no image for it", "damaged")]
    written = first.root.stat().st_mtime_ns
    second = listed(tmp_path / "data.parquet")
    assert (second.root, second.images) == (first.root, first.images)
    assert second.root.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        (["rose/1.jpg", "./tulip//1.jpg"], ["rose/1.jpg", "tulip/1.jpg"]),
        (["../rose/1.jpg", "tulip\\1.jpg"], ["rose/1.jpg", "tulip/1.jpg"]),
        (["/root/.cache/1.jpg", "C:/2.jpg"], ["1.jpg", "2.jpg"]),
        (["1.jpg", "1.jpg"], ["0.jpg", "1.jpg"]),
        (["1.jpg", ""], ["0.jpg", "1"]),
        ([".hidden.jpg", "1.exe"], ["0.jpg", "1"]),
    ],
)
def test_stored_paths_become_names(stored: list[str], names: list[str]) -> None:
    """They are used if they are distinct and lead nowhere else; otherwise the rows are counted."""
    assert image_names(stored) == names


def test_names_without_suffix_are_found(tmp_path: Path) -> None:
    """Kaggle's tables: ids in one column, images in a folder beside the table."""
    touched(tmp_path / "train", "a1.jpg", "b2.jpg", "c3.jpg")
    touched(tmp_path / "test", "d4.jpg", "a1x.jpg")
    table = csv_of(tmp_path / "labels.csv", ("id", "breed"), ("a1", "pug"), ("c3", "boxer"))
    found = listed(table)
    assert by_path(found) == {"train/a1.jpg": "pug", "train/c3.jpg": "boxer"}
    assert found.name == tmp_path.name
    assert found.notes[1] == "2 images found by name: 'a1' is train/a1.jpg"


def test_same_name_in_two_folders(tmp_path: Path) -> None:
    """The folder with most of the files counts, then that of the table's name, else a setting."""
    touched(tmp_path, "test/1.jpg", "test/2.jpg", "train/1.jpg", "train/2.jpg", "train/3.jpg")
    rows = [("id", "label"), ("1", "a"), ("2", "b")]
    assert "train/2.jpg" in by_path(listed(csv_of(tmp_path / "x.csv", *rows, ("3", "a"))))
    assert "train/2.jpg" in by_path(listed(csv_of(tmp_path / "train_labels.csv", *rows)))
    other = csv_of(tmp_path / "y.csv", *rows)
    with pytest.raises(
        DataError, match=r"'1' in .*y\.csv may be test/1.jpg or train/1.jpg\. Set --"
    ):
        listed(other)
    found = listed(other, image_folder="test")
    assert (found.root, by_path(found)) == (tmp_path / "test", {"1.jpg": "a", "2.jpg": "b"})
    (tmp_path / "train" / "2.jpg").unlink()
    touched(tmp_path, "train/4.jpg")
    with pytest.raises(DataError, match=r"'2' .* only found as test/2\.jpg, .*may be another"):
        listed(csv_of(tmp_path / "x.csv", *rows, ("3", "a"), ("4", "a")))


def test_files_beside_the_table_s_folder_are_read(tmp_path: Path) -> None:
    """The root is then the nearest folder that holds all files."""
    touched(tmp_path, "images/1.jpg", "more/2.jpg")
    (tmp_path / "tables").mkdir()
    rows = [("image", "label"), ("../images/1.jpg", "a"), ("../more/2.jpg", "b")]
    found = listed(csv_of(tmp_path / "tables/x.csv", *rows))
    assert (found.root, by_path(found)) == (tmp_path, {"images/1.jpg": "a", "more/2.jpg": "b"})


def test_splits_and_groups_are_read(tmp_path: Path) -> None:
    """A column `split` with the usual names is used; a group only if it is named."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    rows = [
        ("image", "label", "Split", "patient"),
        ("1.jpg", "a", "TRAIN", "p"),
        ("2.jpg", "b", "val", "q"),
        ("3.jpg", "b", "Testing", ""),
        ("4.jpg", "a", "", "p"),
    ]
    found = listed(csv_of(tmp_path / "x.csv", *rows), group_column="patient").images
    assert [image.split for image in found] == ["train", "validation", "test", None]
    assert [image.group for image in found] == ["p", "q", None, "p"]
    with pytest.raises(DataError, match=r"'patient' of .* holds 'p', 'q'\. Use train, validation"):
        listed(tmp_path / "x.csv", split_column="patient")


def test_other_columns_are_kept_in_the_manifest(tmp_path: Path) -> None:
    """They stand in the manifest as text, and the fingerprint does not depend on them."""
    photos = write_photos(tmp_path / "photos", classes=2, images=8)
    folder = ingested(photos, tmp_path / "other")
    rows = [(path, label, f"site {path[-5]}") for path, label in photo_rows(photos)]
    table = csv_of(photos / "x.csv", ("image", "label", "site"), *rows, (rows[0][0], "", "no"))
    found = ingested(table, tmp_path / "work", label_column="label")
    manifest = manifests.load(found.manifest_file)
    expected = {path: site for path, _, site in rows}
    assert dict(zip(manifest["path"], manifest["column:site"], strict=True)) == expected
    assert found.fingerprint == folder.fingerprint


def test_rows_that_contradict_each_other_are_left_out(tmp_path: Path) -> None:
    """A row that is there twice counts once; two labels for an image, or none, are named."""
    touched(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    touched(tmp_path, *(f"{number}.jpg" for number in range(10, 25)))
    rows = [("image", "label"), ("1.jpg", "a"), ("1.jpg", "a"), ("2.jpg", "a"), ("2.jpg", "b")]
    rows += [("3.jpg", ""), ("gone.jpg", "a"), *((f"{n}.jpg", "b") for n in range(10, 25))]
    found = listed(csv_of(tmp_path / "x.csv", *rows))
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
        ("image;label\n1.jpg;a\n2.jpg;b\n", {"1.jpg": "a", "2.jpg": "b"}),
        ('\ufeffimage, label\r\n"1.jpg", "a, b"\r\n2.jpg, c\r\n', {"1.jpg": "a, b", "2.jpg": "c"}),
        ("n,thing,picture\n1,a,1.jpg\n2,b,2.jpg\n", None),
        ("thing,picture\na,1.jpg\nb,2.jpg\n", {"1.jpg": "a", "2.jpg": "b"}),
        ("\n \r\n\nthing;picture\n\na;1.jpg\n \nb;2.jpg\n", {"1.jpg": "a", "2.jpg": "b"}),
    ],
)
def test_csv_files_as_people_write_them(
    tmp_path: Path, text: str, expected: dict[str, str] | None
) -> None:
    """Separators, quotes and byte-order marks are understood, and labels stay what they are."""
    touched(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "x.csv").write_bytes(text.encode())
    if expected is None:
        with pytest.raises(DataError, match=r"which column .* holds the labels: n, thing, picture"):
            listed(tmp_path / "x.csv")
    else:
        assert by_path(listed(tmp_path / "x.csv")) == expected


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"", r"x\.csv is empty"),
        ("x.csv", b"image,label\n", r"has no rows"),
        ("x.csv", b"image,label\n1.jpg,a,b\n", r"Line 2 of .* has 3 values, .* 2 columns"),
        ("x.csv", b"image,image\n1.jpg,a\n", r"two columns named 'image'"),
        (
            "x.csv",
            b"image,label\n1.jpg,\xe9t\xe9\n",
            r"reads .*,été'\)\. Set --data\.enc",
        ),
        ("x.csv", b"a,b,c\n1,2,3\n", r"names the images: a, b, c\. Set --data\.image-column"),
        ("x.csv", b"1.jpg,a,9\n2.jpg,b,8\n", r"column_1, column_2, column_3\. Set"),
        ("x.csv", b"image,label\n1.jpg,\n2.jpg,\n", r"gives no image a label in column 'label'"),
        (
            "x.csv",
            b"image,label\nhttps://a.b/1.jpg,a\n",
            r"x\.csv names 'https://a\.b/1\.jpg', .*no",
        ),
        (
            "x.jsonl",
            b'{"image": "\\u001b\\n", "label": "a"}\n{"image": "'
            + b"x" * 500
            + b'.jpg", "label": "b"}\n',
            r"2 of 2 .* below .*: \\x1b\\n, x{79}…\. Set --data\.image-folder",
        ),
        (
            "x.csv",
            b"image,label\n7.jpg,a\n8.jpg,a\n9.jpg,b\n10.jpg,b\n1.jpg,a\n",
            r"4 of 5 images .* do not exist below .*: 7\.jpg, 8\.jpg, 9\.jpg and 1 more\. Set",
        ),
        ("x.jsonl", b'{"image": "1.jpg"}\n{"image"\n', r"Line 2 of .* is not JSON"),
        ("x.jsonl", b"[1]\n", r"Line 1 of .* is not a JSON object"),
        ("x.parquet", b"PAR1 no", r"is damaged, or is not a Parquet file"),
    ],
)
def test_table_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    """The sentence names the table, what is wrong and the remedy."""
    touched(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as raised:
        listed(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_damaged_tables_end_in_a_sentence(tmp_path: Path, kind: str) -> None:
    """Cut or flipped bytes never crash: a sentence, or other values."""
    touched(tmp_path, "1.jpg", "2.jpg")
    images = [{"bytes": bytes([row]) * 50, "path": f"{row}.jpg"} for row in range(9)]
    pq.write_table(pa.table({"image": images, "label": list("abcabcabc")}), tmp_path / "whole")
    texts = {
        "parquet": (tmp_path / "whole").read_bytes(),
        "csv": b"image,label\n1.jpg,a\n2.jpg,b\n",
        "jsonl": b'{"image":"1.jpg","label":1}\n{"image":"2.jpg","label":2}\n',
    }
    draw = np.random.default_rng(0)
    sentences = []
    for number in range(150):
        data = bytearray(texts[kind])
        if number % 4 == 0:
            data = data[: int(draw.integers(len(data)))]
        for _ in range(int(draw.integers(1, 6)) if data else 0):
            data[int(draw.integers(len(data)))] = int(draw.integers(256))
        (tmp_path / f"x.{kind}").write_bytes(data)
        try:
            listed(tmp_path / f"x.{kind}")
        except DataError as error:
            sentences.append(str(error))
    assert len(sentences) > 20
    assert all("\n" not in sentence and sentence.endswith(".") for sentence in sentences)


def test_columns_that_do_not_exist_are_named(tmp_path: Path) -> None:
    """A column of the settings is looked up, and so are a missing table and folder."""
    touched(tmp_path, "1.jpg")
    table = csv_of(tmp_path / "x.csv", ("image", "label"), ("1.jpg", "a"))
    with pytest.raises(DataError, match=r"data\.label_column is 'kind', .* columns image, label"):
        listed(table, label_column="kind")
    with pytest.raises(DataError, match=r"data\.image_folder is .*none, which is not a folder"):
        listed(table, image_folder="none")
    with pytest.raises(DataError, match="There is no table"):
        listed(tmp_path / "none.csv")


def test_settings_stand_beside_the_path_or_below_options(tmp_path: Path) -> None:
    """`data.label_column` is short for `data.options.label_column`, for tables alone."""
    file = tmp_path / "run.yaml"
    file.write_text("data: {path: labels.csv, label_column: species}", encoding="utf-8")
    flags = {"data": {"options": {"label_column": "kind"}}}
    given = requested(None, preset_name=None, file=file, flags={})
    stronger = requested(None, preset_name=None, file=file, flags=flags)
    assert given.data.source == "table"
    assert given.data.options["label_column"] == "species"
    assert stronger.data.options["label_column"] == "kind"
    with pytest.raises(ConfigError, match="label_column"):
        requested("photos", preset_name=None, file=None, flags={"data": {"label_column": "a"}})


def test_a_parquet_file_beyond_the_memory_is_not_only_called_damaged(tmp_path: Path) -> None:
    """A sentence names both possible reasons, and what to do about each."""
    words = r"x\.parquet needs more memory than is available, or is damaged \(MemoryError\)\. Free"
    with pytest.raises(DataError, match=words), parquet_errors(tmp_path / "x.parquet"):
        raise MemoryError


def test_an_address_that_is_none_names_the_table(tmp_path: Path) -> None:
    """A cell that begins like an address of a store is data, not a setting."""
    (tmp_path / "x.csv").write_text("image,label\nfile://host/x.png,a\n1.png,b\n")
    with pytest.raises(DataError, match=r"x\.csv cannot be used: .* is file://host/x\.png"):
        listed(tmp_path / "x.csv")


def test_a_table_of_answers_names_near_duplicates_and_why_images_were_labelled(
    tmp_path: Path,
) -> None:
    """Without a setting, and beside a column of groups that a person names."""
    table = AnswersTable(tmp_path / "labels.csv")
    for number, source in enumerate(("random", "uncertain", "random", "random")):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
        table.append([Answer(f"{number}.png", "label", ("rose",), source=source)])
    table.group([["0.png", "1.png"]])
    near = {image.path: image.group for image in listed(table.file).images}
    assert near["0.png"] == near["1.png"] != near["2.png"]
    assert near["2.png"] is near["3.png"] is None
    assert listed(table.file).columns["patchline_label_source"] == [
        "random",
        "uncertain",
        "random",
        "random",
    ]
    lines = table.file.read_text().splitlines()
    by_hand = tmp_path / "by_hand.csv"
    by_hand.write_text("\n".join([lines[0], "3.png,rose,,,,,,", lines[2]]))
    assert listed(by_hand).columns["patchline_label_source"] == ["table", "uncertain"]
    patients = ("patient", "", "p1", "p1", "")
    file = tmp_path / "named.csv"
    file.write_text("\n".join(f"{a},{b}" for a, b in zip(lines, patients, strict=True)))
    named = [image.group for image in listed(file, group_column="patient").images]
    assert named == ["p1", "p1", "p1", None]
    pattern = with_groups(listed(table.file), r"([12])\.png")
    assert [image.group for image in pattern.images] == ["1", "1", "2", None]
    fixed = tmp_path / "split.csv"
    splits = ("split", "train", "test", "", "")
    fixed.write_text("\n".join(f"{a},{b}" for a, b in zip(lines, splits, strict=True)))
    assert {image.group for image in listed(fixed).images} == {None}
