"""How settings of the data decide what a path or a cell says about the class, for every source."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError
from tests.plugins.listings import labels_of, listed, refused, touched


def tabled(root: Path, rows: Iterable[str]) -> Path:
    """Write a table of images and labels."""
    (root / "table.csv").write_text("\n".join(["image,label", *rows]), "utf-8")
    return root / "table.csv"


@pytest.fixture
def sites() -> Path:
    """Return a folder in which the sites may be the classes, or the animals."""
    names = [f"{s}/{a}/{n}.jpg" for s in ("siteA", "siteB") for a in ("cat", "dog") for n in (1, 2)]
    return touched("sites", *names)


def test_unclear_level_is_a_question_in_folders_and_archives(sites: Path) -> None:
    """Neither reading is chosen without being asked for."""
    for data in (sites, Path(shutil.make_archive(str(sites.parent / "packed"), "zip", sites))):
        refused(r"not clear which folders.*--data\.label leaf", data)
        assert set(labels_of(listed(data, label="leaf")).values()) == {"cat", "dog"}


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("top", {"siteA", "siteB"}),
        ("{site}/{label}/*", {"cat", "dog"}),
        ("{label}/**", {"siteA", "siteB"}),
    ],
)
def test_the_setting_answers(sites: Path, label: str, expected: set[str]) -> None:
    """`top`, `leaf` or a pattern choose the part of the path that is the class."""
    found = listed(sites, label=label)
    assert (set(labels_of(found).values()), len(found.images)) == (expected, 8)


def test_pattern_reads_split_group_and_columns() -> None:
    """Other names in braces are columns of the manifest; what has another form is left out."""
    root = touched("x", "siteA/train/p1_cat_1.jpg", "siteB/val/p2_dog_1.jpg", "siteB/readme.txt")
    found = listed(root, label="{site}/{split}/{group}_{label}_*.jpg")
    assert [tuple(image)[1:4] for image in found.images] == [
        ("cat", "train", "p1"),
        ("dog", "validation", "p2"),
    ]
    assert found.columns == {"site": ["siteA", "siteB"]}
    [left_out] = found.left_out
    assert (left_out.path, left_out.status) == ("siteB/readme.txt", "foreign")
    refused(r"\{split\} is 'siteA'", root, label="{split}/*/{label}_*")
    refused(r"no path is of that form: siteA/train", root, label="{label}/x.jpg")
    with pytest.raises(ConfigError, match=r"data\.label is 'foo', but it has no \{label\}"):
        listed(root, label="foo")


def test_paths_of_a_table_can_name_the_classes() -> None:
    """A table with paths alone needs no column of labels then."""
    root = touched("x", "cat/1.jpg", "dog/2.jpg")
    (root / "files.csv").write_text("image\ncat/1.jpg\ndog/2.jpg\n", "utf-8")
    for label in ("leaf", "top", "{label}/*"):
        assert list(labels_of(listed(root / "files.csv", label=label)).values()) == ["cat", "dog"]


def test_two_forms_of_unicode_are_one_class() -> None:
    """Folders made on macOS and on Linux look alike; that they are united is said."""
    forms = [unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD")]
    root = touched("x", *(f"{form}/{n}.jpg" for n, form in enumerate(forms)), "tea/3.jpg")
    (root / forms[1].replace("f", "ff")).mkdir()
    found = listed(root)
    assert set(labels_of(found).values()) == {forms[0], "tea"}
    assert found.notes == [f"'{forms[0]}' is one class, written in two forms of Unicode"]
    assert found.empty_classes == [forms[0].replace("f", "ff")]


def test_names_that_look_equal_are_merged_only_on_request() -> None:
    """By default, `Cat` and `cat` stay two classes, which the run names as suspicious."""
    root = touched("x", "Cat/1.jpg", "cat/2.jpg", "cat/3.jpg", "dog/4.jpg")
    assert set(labels_of(listed(root)).values()) == {"Cat", "cat", "dog"}
    found = listed(root, merge_classes=True)
    assert set(labels_of(found).values()) == {"cat", "dog"}
    assert found.notes == ["data.merge_classes: 'Cat' counted as 'cat'"]


@pytest.mark.parametrize("kind", ["folder", "archive", "table"])
def test_files_of_other_programs_are_skipped_and_counted(kind: str) -> None:
    """Thumbnails and recycle bins are no images, wherever they come from."""
    others = ("@eaDir/x.jpg", "#recycle/y.jpg", "a/@eaDir/1.jpg/THUMB_M.jpg", "a/Thumbs.db")
    data = root = touched("x", "a/1.jpg", "b/2.jpg", *others)
    if kind == "archive":
        data = Path(shutil.make_archive("packed", "zip", root))
    elif kind == "table":
        data = tabled(root, ["a/1.jpg,a", "b/2.jpg,b", *(f"{path},a" for path in others)])
    found = listed(data)
    assert labels_of(found) == {"a/1.jpg": "a", "b/2.jpg": "b"}
    assert any("3 folders and 1 file are skipped by data.ignore" in note for note in found.notes)
    assert not found.empty_classes


def test_patterns_of_one_s_own() -> None:
    """They replace the default ones unless `default` is among them; a path pattern is anchored."""
    root = touched("x", "a/1.jpg", "a/1_mask.png", "b/2.jpg", "old/a/3.jpg", "b/Thumbs.db")
    for ignored, left in (
        (["*_MASK.png", "old/"], {"a/1.jpg", "b/2.jpg", "b/Thumbs.db"}),
        (["default", "old/a/*", "a/1_*"], {"a/1.jpg", "b/2.jpg"}),
    ):
        assert set(labels_of(listed(root, ignore=ignored))) == left


@pytest.mark.parametrize(
    ("text", "header", "images"),
    [
        ("sub/3,cat\n2.jpg,dog\n", "auto", ["sub/3", "2.jpg"]),
        ("x,y\n1.jpg,cat\nx,y\n2.jpg,dog\n", "auto", ["1.jpg", "2.jpg"]),
        ("1,cat\n2,dog\n3,cat\n", "false", ["1.jpg", "2.jpg", "sub/3"]),
        ("1.jpg,cat\n2.jpg,dog\n", "true", ["2.jpg"]),
    ],
)
def test_no_table_loses_its_first_image(text: str, header: str, images: list[str]) -> None:
    """A first line that names an image is no header, and headers in between are no images."""
    table = touched("x", "1.jpg", "2.jpg", "sub/3") / "table.csv"
    table.write_text(text, "utf-8")
    named = {} if "x" in text or header == "true" else {"image_column": "column_1"}
    assert [image.path for image in listed(table, header=header, **named).images] == images


def test_first_line_that_may_be_a_header_is_a_question() -> None:
    """A cell that occurs again below the first line is a sign that it is data."""
    table = touched("x", "1.jpg", "2.jpg") / "table.csv"
    table.write_text("1,cat\n2,dog\n3,cat\n", "utf-8")
    refused(r"'cat' occurs again below it\. Set --data\.header false", table)


@pytest.mark.parametrize("form", [r"C:\data\me\{}", "/home/me/data/{}", " {} "])
def test_paths_of_another_machine_are_found(form: str) -> None:
    """Backslashes, drives, spaces and another machine's folder do not matter."""
    paths = ["a/1.jpg", "a/2.jpg", "b/1.jpg"]
    written = [path.replace("/", "\\") if "\\" in form else path for path in paths]
    table = tabled(touched("x", *paths), (f"{form.format(path)},{path[0]}" for path in written))
    assert sorted(labels_of(listed(table))) == paths


def test_case_and_unicode_of_a_file_name_may_differ() -> None:
    """A name in another case is found, unless another row names that file."""
    nfd = unicodedata.normalize("NFD", "a/\u00e9.jpg")
    many = [f"a/{n}.jpg" for n in range(10, 30)]
    root = touched("x", "a/1.jpg", "a/3.jpg", nfd, *many)
    rows = ["a/1.JPG,x", "a/\u00e9.jpg,x", "a/3.jpg,y", "a/3.JPG,x", *(f"{n},y" for n in many)]
    found = listed(tabled(root, rows))
    assert labels_of(found)["a/1.jpg"] == labels_of(found)[nfd] == "x"
    assert [each.path for each in found.left_out] == ["a/3.JPG"]
