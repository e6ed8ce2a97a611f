"""Exports of labelling tools: COCO JSON and Label Studio's JSON, and what they leave open."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.data_kinds import data_kind
from tests.plugins.listings import labels_of, listed, refused, touched

BOX = [1, 1, 4, 4]


def coco(name: Path | str, labels: dict[str, list[Any]], **annotation: Any) -> Path:
    """Write COCO JSON of images with the labels of their annotations, and the images."""
    names = ["cat", "dog", "red fox"]
    images = [{"id": number, "file_name": name} for number, name in enumerate(labels)]
    annotations = [
        {"id": len(names), "image_id": number, "category_id": names.index(label) + 1, **annotation}
        for number, each in enumerate(labels.values())
        for label in each
    ]
    categories = [{"id": 0, "name": "animals", "supercategory": "none"}]
    categories += [
        {"id": number, "name": name, "supercategory": "animals"}
        for number, name in enumerate(names, start=1)
    ]
    file = Path.cwd() / name
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"images": images, "annotations": annotations, "categories": categories}
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_annotations_without_a_box_are_labels() -> None:
    """An image without annotations has no label, and images are found by name."""
    touched("set", "images/1.jpg", "images/2.jpg", "images/3.jpg")
    file = coco(
        "set/annotations/instances.json",
        {"1.jpg": ["cat", "dog", "cat"], "2.jpg": [], "3.jpg": ["dog"]},
    )
    found = listed(file)
    assert labels_of(found) == {
        "images/1.jpg": ("cat", "dog"), "images/2.jpg": (), "images/3.jpg": ("dog",),
    }  # fmt: skip
    assert any("images/1.jpg has 'cat' and 'dog'" in note for note in found.notes)
    assert (found.empty_classes, found.name) == (["red fox"], "set")


def test_boxes_are_a_question() -> None:
    """Their classes become labels, or they are ignored; nothing is guessed."""
    touched(".", "1.jpg", "2.jpg")
    file = coco("x.json", {"1.jpg": ["cat", "dog"], "2.jpg": ["dog"]}, bbox=BOX)
    refused(r"3 of 3 annotations .* Set --data\.boxes labels .*ignore", file)
    assert labels_of(listed(file, boxes="labels")) == {"1.jpg": ("cat", "dog"), "2.jpg": ("dog",)}
    ignored = listed(file, boxes="ignore")
    assert labels_of(ignored) == {"1.jpg": (), "2.jpg": ()}
    assert any("3 annotations are regions of an image; none is used" in n for n in ignored.notes)


def test_folders_of_roboflow_are_splits() -> None:
    """Each has its own file; the same name in two of them is two images."""
    for split in ("train", "valid", "test"):
        touched(Path("pets") / split, "1.jpg", "2.jpg")
        coco(Path("pets") / split / "_annotations.coco.json", {"1.jpg": ["cat"], "2.jpg": []})
    assert data_kind("pets") == "coco"
    found = listed("pets")
    assert (found.name, labels_of(found)["valid/1.jpg"]) == ("pets", ("cat",))
    assert {image.path: image.split for image in found.images}["valid/2.jpg"] == "validation"


_ELSEWHERE = json.dumps({
    "images": [{"id": 1, "file_name": "1.jpg"}],
    "annotations": [{"image_id": 2, "category_id": 1}],
    "categories": [{"id": 1, "name": "a"}],
})  # fmt: skip
_OUTSIDE = json.dumps({
    "images": [{"id": 1, "file_name": "../../../etc/passwd"}], "annotations": [], "categories": [],
})  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, r"is not valid JSON"),
        ('{"images": {}, "annotations": [], "categories": []}', r"'images' in .* to be a list"),
        ('{"images": [4], "annotations": [], "categories": []}', r"An image in .* is 4, but has"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', r"'file_name' of image 1"),
        (_ELSEWHERE, r"is of image 2, which the file does not list"),
        (_OUTSIDE, r"1 of 1 images named in .* do not exist below"),
    ],
)
def test_damaged_coco_files_end_in_a_sentence(content: str, words: str) -> None:
    """What is wrong is named, in one line, whatever the file holds."""
    touched(".", "1.jpg")
    file = Path("x.json")
    file.write_text(content)
    with pytest.raises(DataError, match=words) as raised:
        listed(file, source="coco")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"id": 70, "image_id": 3, "category_id": 9}, "annotation 70 is of category 9, which the"),
        ({"id": 7, "image_id": 3, "category_id": [1]}, r"'category_id' of annotation 7 is \[1\]"),
    ],
)
def test_the_image_of_a_bad_annotation_is_left_out(odd: dict[str, Any], reason: str) -> None:
    """Its labels are not known; the annotation is named, and the others train."""
    names = [f"{number}.jpg" for number in range(40)]
    touched(".", *names)
    file = coco("x.json", {name: ["cat"] for name in names})
    content = json.loads(file.read_text())
    content["annotations"].append(odd)
    file.write_text(json.dumps(content))
    found = listed(file)
    lost = next(image["file_name"] for image in content["images"] if image["id"] == 3)
    assert [each.path for each in found.left_out] == [lost]
    assert re.search(reason, found.left_out[0].reason)
    assert len(found.images) == 39
    assert any(re.search(f"1 annotation is ignored, .*{reason}", note) for note in found.notes)


def result(*labels: Any, kind: str = "choices", about: str = "img", **more: Any) -> Any:
    """Return what one control of Label Studio says."""
    return {"type": kind, "from_name": "class", "to_name": about, "value": {kind: labels}, **more}


def task(image: str, *annotations: list[str] | None, kind: str = "choices") -> Any:
    """Return a task; an annotation that is None was skipped."""
    given = [
        {
            "was_cancelled": labels is None,
            "result": [result(*labels or (), kind=kind)] * bool(labels),
        }
        for labels in annotations
    ]
    return {"id": 1, "data": {"image": image}, "annotations": given, "predictions": []}


def studio(file: Path | str, *tasks: Any) -> Path:
    """Write an export of Label Studio."""
    file = Path.cwd() / file
    file.write_text(json.dumps(tasks), encoding="utf-8")
    return file


def test_choices_of_label_studio_are_labels() -> None:
    """Addresses are mapped to files below `data.root`; who has not answered gives no label."""
    photos = touched("photos", "a/1.jpg", "b/1.jpg", "2.jpg", "3 x.jpg", "4.jpg", "5.jpg", "6.jpg")
    file = studio(
        "export.json",
        task("s3://bucket/pets/b/1.jpg", ["cat", "dog"]),
        task("/data/upload/3/0a1b2c3d-2.jpg", ["cat"]),
        task("/data/local-files/?d=photos/3%20x.jpg", []),
        task("https://example.org/photos/4.jpg?token=secret", ["dog"], ["dog"]),
        task("5.jpg"),
        task("6.jpg", None),
    )
    assert data_kind(str(file)) == "label_studio"
    found = listed(file, root=str(photos))
    assert labels_of(found) == {
        "b/1.jpg": ("cat", "dog"), "2.jpg": ("cat",), "3 x.jpg": (), "4.jpg": ("dog",),
    }  # fmt: skip
    assert {each.path: each.reason for each in found.left_out} == {
        "5.jpg": "has no label", "6.jpg": "has no label",
    }  # fmt: skip
    assert any("b/1.jpg has 'cat' and 'dog'" in note for note in found.notes)
    refused(r"is not a folder\. Give the folder of the images", file, root="gone")


def odd_task(*results: Any, image: str = "odd.jpg", **annotation: Any) -> Any:
    """Return a task with one annotation, and a text beside its image."""
    given = {"result": list(results), **annotation}
    return {"data": {"image": image, "text": "a"}, "annotations": [given]}


_TWO = [{"accepted": True, "created_at": "2"}, {"accepted": False, "created_at": "3"}]
_FIXED = {"accepted": True, "created_at": "4", "fixed_annotation_history_result": [result("cat")]}
_AREA = {"type": "rectangle", "id": "r", "value": {"x": 1}}


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([odd_task()], "has no label"),
        ([odd_task(result("cat"), was_cancelled=True)], "has no label"),
        ([odd_task(result("cat"), reviews=_TWO)], "has no label that its review accepts"),
        ([odd_task(result("cat"), last_action="rejected")], "has no label that its review accepts"),
        ([odd_task(result("dog"), reviews=[_FIXED, *_TWO])], "cat"),
        ([odd_task(result("cat", "dog"))], "has several labels, 'cat' and 'dog'"),
        ([odd_task(result("cat")), odd_task(result("dog"))], "has two labels .*'cat' and 'dog'"),
        ([odd_task(result("cat")), odd_task(result("cat"), image="a/odd.jpg")], "cat"),
        ([odd_task(was_cancelled=True), odd_task(result("cat"))], "cat"),
        ([odd_task(result("cat"), result("bad", about="text"))], "cat"),
        ([odd_task(result("bad", about="text"))], "has no label"),
        ([odd_task(_AREA, result("blurred", id="r"), result("cat"))], "cat"),
        ([odd_task(result(["pet"], ["pet", "cat"], kind="taxonomy"))], "cat"),
        ([odd_task(result(["pet", "cat"]))], "cat"),
        ([{**task("odd.jpg"), "annotations": [{"result": 4}]}], r".*is 4, but has .* \(task 1\)"),
    ],
)
def test_one_odd_task_leaves_its_image_out_or_is_understood(
    tasks: list[Any], expected: str
) -> None:
    """The others keep one label each."""
    names = [f"{number}.jpg" for number in range(12)]
    touched(".", "odd.jpg", *names)
    most = [odd_task(result(["cat", "dog"][n % 2]), image=name) for n, name in enumerate(names)]
    found = listed(studio("x.json", *most, *tasks), boxes="ignore")
    labels = labels_of(found)
    assert set(labels.values()) == {"cat", "dog"}
    reasons = {each.path: each.reason for each in found.left_out}
    assert re.fullmatch(expected, str(labels.get("odd.jpg", reasons.get("odd.jpg"))))
    assert len(labels) + len(reasons) == 13


def test_two_labels_of_one_name_are_refused() -> None:
    """In two branches of a taxonomy, or of two supercategories; a part beside its whole is said."""
    touched(".", "1.jpg", "2.jpg")
    paths = (["bird", "crane"], ["machine", "crane"])
    tasks = [
        odd_task(result(path, kind="taxonomy"), image=f"{n}.jpg") for n, path in enumerate(paths, 1)
    ]
    refused(r"two branches, 'bird > crane' and 'machine > crane'", studio("x.json", *tasks))
    tasks[1] = odd_task(result(["bird"], kind="taxonomy"), image="2.jpg")
    notes = listed(studio("x.json", *tasks)).notes
    assert any("'bird' is a class of its own beside its part 'crane'" in note for note in notes)
    file = coco("y.json", {"1.jpg": ["cat"], "2.jpg": ["dog"]})
    file.write_text(file.read_text().replace('"dog", "supercategory": "animals"', '"cat"'))
    refused(r"two branches, 'animals > cat' and", file)


def test_entries_of_coco_that_share_a_file(tmp_path: Path) -> None:
    """Labels that differ leave it out, and a folder's images are those in it."""
    names = [f"{number}.jpg" for number in range(12)]
    labels: dict[str, list[Any]] = {name: ["cat"] for name in names}
    for split in ("train", "valid"):
        coco(tmp_path / split / "_annotations.coco.json", {**labels, "a/3.jpg": ["dog"]})
    touched(".", *(f"train/{name}" for name in names), *(f"valid/{n}" for n in names[1:]))
    found = listed(tmp_path)
    assert [(each.path, each.reason.partition(",")[0]) for each in found.left_out] == [
        ("train/3.jpg", "has two labels in the export"),
        ("valid/0.jpg", "there is no such file"),
        ("valid/3.jpg", "has two labels in the export"),
    ]
    assert set(labels_of(found).values()) == {"cat"}


def test_regions_and_several_controls_of_label_studio_are_questions() -> None:
    """The flags that answer them are named."""
    touched(".", "1.jpg", "2.jpg")
    boxes = [task(f"{n}.jpg", ["cat", "dog"][:n], kind="rectanglelabels") for n in (1, 2)]
    file = studio("x.json", *boxes)
    refused(r"2 of 2 answers .* are regions .*--data\.boxes labels", file)
    assert labels_of(listed(file, boxes="labels")) == {"1.jpg": ("cat",), "2.jpg": ("cat", "dog")}
    two = [task("1.jpg", ["cat"]), task("2.jpg", ["dog"])]
    two[0]["annotations"][0]["result"].append(result("bright") | {"from_name": "light"})
    file = studio("y.json", *two)
    refused(r"controls 'class' and 'light'\. Set --data\.label-column", file)
    assert labels_of(listed(file, label_column="class")) == {"1.jpg": "cat", "2.jpg": "dog"}


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([], r"holds no tasks"),
        ([{"data": {"text": "a", "more": "b"}}], r"which value .* names the images: 'text' and"),
        ([{"data": {"image": "1.jpg"}, "annotations": [{"result": 4}]}], r"'result' of an annot"),
        ([{"data": {"image": 4}, "annotations": []}], r"holds no task that is annotated"),
    ],
)
def test_damaged_exports_end_in_a_sentence(tasks: list[Any], words: str) -> None:
    """What is wrong is named."""
    touched(".", "1.jpg")
    refused(words, studio("x.json", *tasks), source="label_studio")


def test_lists_of_objects_are_tables() -> None:
    """As Label Studio's short form, where several choices stand in an object."""
    touched(".", "1.jpg", "2.jpg")
    rows = [{"image": "1.jpg", "class": {"choices": ["a", "b"]}}, {"image": "2.jpg", "class": "a"}]
    file = Path("x.json")
    file.write_text(json.dumps(rows))
    assert labels_of(listed(file)) == {"1.jpg": ("a", "b"), "2.jpg": ("a",)}


@pytest.mark.parametrize("form", ["tasks", "csv"])
def test_uploaded_images_are_found_by_their_names(tmp_path: Path, form: str) -> None:
    """Label Studio puts a random part before a name, and replaces what is odd in it."""
    touched(".", "photos/My Photo (1).jpg", "photos/cat 2.jpg", "photos/dög.jpg")
    stored = ["0a1b2c3d-My_Photo_1.jpg", "ffffffff-cat_2.jpg", "12345678-dög.jpg"]
    paths = [f"/data/upload/1/{name}" for name in stored]
    file = tmp_path / ("x.csv" if form == "csv" else "x.json")
    if form == "csv":
        rows = [f"{number},{path},{'ab'[number % 2]},4.2" for number, path in enumerate(paths)]
        file.write_text("\n".join(["annotation_id,image,choice,lead_time", *rows]))
    else:
        studio(file, *(task(path, ["ab"[n % 2]]) for n, path in enumerate(paths)))
    assert labels_of(listed(file)) == {
        "photos/My Photo (1).jpg": "a", "photos/cat 2.jpg": "b", "photos/dög.jpg": "a",
    }  # fmt: skip


@pytest.mark.parametrize("start", ["", "/data/local-files/?d=", "file://"])
def test_a_name_is_what_is_written_before_it_is_decoded(tmp_path: Path, start: str) -> None:
    """Files that it might also mean lie beside it; it is decoded once, if it has no file."""
    written = ["a+b.png", "Q&A.png", "12%3A30.png", "Q?1.png"]
    touched(".", *written, "a b.png", "Q", "12:30.png", "c d.png", "5%25.png", "5%.png")
    start = start.replace("file://", f"file://{tmp_path}/")
    names = [f"{start}{name}" for name in (*written, "c%20d.png", "5%2525.png")]
    expected = {*written, "c d.png", "5%25.png"}
    file = tmp_path / "x.csv"
    file.write_text(
        "\n".join(["image,label", *(f"{n},{'ab'[i % 2]}" for i, n in enumerate(names))])
    )
    assert labels_of(listed(file)).keys() == expected
    file = studio("x.json", *(task(n, ["ab"[i % 2]]) for i, n in enumerate(names)))
    assert labels_of(listed(file)).keys() == expected


def test_two_ways_to_decode_a_name_are_a_question() -> None:
    """A plus may be a space."""
    touched(".", "a b c.png", "a+b c.png")
    file = studio("x.json", task("/data/local-files/?d=a+b%20c.png", ["a"]))
    refused(r"may be a\+b c\.png or a b c\.png", file)
