"""When it is not clear which folders are the classes."""

from __future__ import annotations

import itertools
import re

import pytest

from patchline.pipeline.data.labels.folder_levels import unclear_level


def pairs(*folders: str) -> list[tuple[str, str]]:
    """Return the class, which is the first folder, and the path of an image in each folder."""
    return [(folder.partition("/")[0], f"{folder}/1.jpg") for folder in folders]


def crossed(*levels: str) -> list[tuple[str, str]]:
    """Return an image in every combination of folders: `"a b", "c d"` are a/c, a/d, b/c and b/d."""
    return pairs(*map("/".join, itertools.product(*(level.split() for level in levels))))


@pytest.mark.parametrize(
    ("images", "remedy"),
    [
        (crossed("siteA siteB", "cat dog"), "--data.label leaf for the classes 'cat' and 'dog'"),
        (crossed("siteA siteB", "cat dog", "p1 p2"), r"'\*/\{label\}/\*\*'"),
        (pairs("A/cat", "A/dog", "A/bird", "B/cat", "B/dog", "C/cat"), "leaf"),
        (pairs("A/caf\u00e9", "A/dog", "B/cafe\u0301", "B/dog"), "leaf"),
        (pairs("A/d1/cat", "A/d2/dog", "B/d3/cat", "B/d4/dog"), r"leaf"),
        (crossed("cat dog", "train test"), r"'\{label\}/\{split\}/\*\*'"),
        (
            pairs("cat", "dog", "backup/cat", "backup/dog"),
            "--data.ignore default --data.ignore 'backup/'",
        ),
        (pairs("cat", "dog", "more/cat"), "leaf"),
        (
            [
                (path.split("/")[1], path)
                for _, path in crossed("train test", "A B", "cat dog", "p")
            ],
            r"'\{split\}/\*/\{label\}/\*\*'",
        ),
        (pairs("JPEGImages", "Annotations", "ImageSets/Main"), "the COCO JSON with the labels"),
        (
            [("image_2", "training/image_2/1.png"), ("label_2", "training/label_2/1.txt")],
            "COCO JSON",
        ),
        ([("images", "images/val/1.jpg"), ("labels", "labels/val/1.txt")], "COCO JSON"),
        (crossed("ill well", "images masks"), "--data.ignore 'masks/'"),
        (pairs("images_001", "images_002"), "the table with the labels"),
        (pairs("train2017", "val2017"), "the folder whose folders are the classes"),
    ],
)
def test_names_that_repeat_or_are_no_classes_are_a_question(
    images: list[tuple[str, str]], remedy: str
) -> None:
    """The same names in most class folders, those of the classes beside them, or of no classes."""
    question = unclear_level(images)
    assert question
    assert "--data.label top" in question.remedy
    assert re.search(remedy, question.remedy), question.remedy


@pytest.mark.parametrize(
    "images",
    [
        pairs("cat", "dog"),
        pairs("cat/p1", "cat/p2", "cat/p3", "dog/p3", "dog/p4", "dog/p5", "dog/p6"),
        pairs("cat/cat", "dog/dog"),
        pairs("cat/front", "cat/back", "dog/front", "dog/back", *"abcdefgh"),
        pairs("siteA/cat"),
        pairs("cat", "dog", "images"),
        pairs("images/cat", "images/dog"),
        [("cat", "train/cat/1.jpg"), ("dog", "train/dog/1.jpg"), ("cat", "test/cat/2.jpg")],
    ],
)
def test_other_folders_are_no_question(images: list[tuple[str, str]]) -> None:
    """Patients, a folder `images`, a few views of two classes: the class folder is the class."""
    assert unclear_level(images) is None
