"""A packaged model answers for bytes, base64, paths and arrays alike, one answer an image.

An answer has a set, warnings and a map, by the rules in the files of the package.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from patchline.pipeline.packaging.packaged_model import PackagedModel
from tests.conftest import draw_photo, encoded
from tests.pipeline.conftest import CLASSES, SIDE, Exported, image_spec
from tests.pipeline.ruled_package import package_with_rules, photograph

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def rgb(exported_rgb: Exported) -> PackagedModel:
    return PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)


def _photos(count: int, side: int = 40) -> list[Pixels]:
    return [draw_photo(variant % 4, variant, side) for variant in range(count)]


def _probabilities(answer: dict[str, Any]) -> dict[str, float]:
    assert answer["error"] is None
    return {entry["label"]: entry["probability"] for entry in answer["top_k"]}


def _assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["label"] == other["label"]
    assert _probabilities(one) == pytest.approx(_probabilities(other), abs=1e-6)


def test_all_forms_of_an_image_give_the_same_answer(rgb: PackagedModel, tmp_path: Path) -> None:
    """Bytes, bytearray, base64, a path, its text and an array of one image are answered alike."""
    [photo] = _photos(1)
    data = encoded(photo)
    file = tmp_path / "photo.png"
    file.write_bytes(data)
    forms: list[object] = [
        *(data, bytearray(data), memoryview(data), base64.b64encode(data).decode()),
        base64.encodebytes(data).decode(),  # in lines of 76 characters
        *(file, str(file), photo, np.frombuffer(data, np.uint8)),
        {"b64": base64.b64encode(data).decode()},
        f"data:image/png;base64,{base64.b64encode(data).decode()}",
    ]
    answers = rgb.answers(forms)
    assert len(answers) == len(forms)
    for answer in answers:
        _assert_same(answer, answers[0])


def test_an_answer_is_what_the_trained_model_says(
    rgb: PackagedModel, exported_rgb: Exported
) -> None:
    """Label and probabilities are those of the torch model on the same pixels."""
    photos = _photos(6, SIDE)
    with torch.inference_mode():
        expected = exported_rgb.model(torch.from_numpy(np.stack(photos))).numpy()
    answers = rgb.answers(list(photos), top_k=len(CLASSES))
    for answer, row in zip(answers, expected, strict=True):
        assert answer["label"] == CLASSES[int(row.argmax())]
        assert answer["probability"] == pytest.approx(float(row.max()), abs=1e-5)
        assert _probabilities(answer) == pytest.approx(
            dict(zip(CLASSES, row.tolist(), strict=True)), abs=1e-5
        )


def test_a_broken_image_gets_its_own_error(rgb: PackagedModel, tmp_path: Path) -> None:
    """Images that cannot be read get their reasons; the others get their answers, in place."""
    good, other = (encoded(photo) for photo in _photos(2))
    broken: list[object] = [
        good[: len(good) // 2],
        b"",
        b"no image at all",
        str(tmp_path / "missing.png"),
        str(tmp_path),
        "a\0b",
        Path("abcd"),  # the name of a missing file, though it looks like base64
        3.5,
        None,
        base64.b64encode(base64.b64encode(good)).decode(),
        np.zeros((4, 4, 3), np.float32),
        *(np.zeros(shape, np.uint8) for shape in ((8, 8), (3, 8, 8), (8, 8, 2), (1, 8, 3))),
        np.zeros(7, np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        Path("/proc/self/mem"),  # a regular file by its mode, whose first byte is nowhere
    ]
    answers = rgb.answers([good, *broken, other])
    _assert_same(answers[0], rgb.answers([good])[0])
    _assert_same(answers[-1], rgb.answers([other])[0])
    for answer in answers[1:-1]:
        assert answer["error"]
        assert (answer["label"], answer["probability"], answer["top_k"]) == (None, None, [])
    assert answers[2]["error"] == "the file is empty"
    assert "missing.png" in answers[4]["error"]
    assert answers[7]["error"] == "cannot be read: No such file or directory"
    assert rgb.answers([]) == []


def test_a_server_reads_no_paths(rgb: PackagedModel, tmp_path: Path) -> None:
    """Whoever asks a server cannot make it open its files, nor learn which there are."""
    photo = encoded(_photos(1)[0])
    there, absent = tmp_path / "there.png", tmp_path / "absent.png"
    there.write_bytes(photo)
    text = base64.b64encode(photo).decode()
    answers = rgb.answers([str(there), str(absent), there, photo, text], paths=False)
    assert [answer["error"] is None for answer in answers] == [False] * 3 + [True] * 2
    assert answers[0]["error"].replace("there", "absent") == answers[1]["error"]


def test_a_colour_image_suits_a_grey_model(exported_rgb: Exported, tmp_path: Path) -> None:
    """A colour array gets the luminance that the decoder gives to the same file."""
    described = json.loads(exported_rgb.description_file.read_text("utf-8"))
    described["image"] = image_spec(1).model_dump(mode="json")
    (tmp_path / "model.json").write_text(json.dumps(described), "utf-8")
    grey, photo = PackagedModel(exported_rgb.onnx_file, tmp_path / "model.json"), _photos(1)[0]
    difference = grey.pixels(photo).astype(int) - grey.pixels(encoded(photo)).astype(int)
    assert np.abs(difference).max() <= 1


def test_a_set_holds_every_probable_class(exported_rgb: Exported, tmp_path: Path) -> None:
    """The set of an image has the classes at or above the threshold, the most probable first."""
    package = package_with_rules(exported_rgb, tmp_path)
    for seed in range(12):
        [answer] = package.answers([photograph(seed)], top_k=len(CLASSES))
        expected = [each["label"] for each in answer["top_k"] if each["probability"] >= 0.1]
        assert answer["set"] == expected
        assert answer["coverage"] == 0.95
        assert answer["set_unknown"] is None


@pytest.mark.parametrize(
    ("asked", "said", "known"), [(0.92, 0.95, True), (0.5, 0.9, True), (0.97, 0.99, False),
                                 (2.0, 2.0, False)],
)  # fmt: skip
def test_another_coverage_is_said_or_unknown(
    exported_rgb: Exported, tmp_path: Path, asked: float, said: float, known: bool
) -> None:
    """A set has the next coverage that the package knows, and says which; else there is none."""
    [answer] = package_with_rules(exported_rgb, tmp_path).answers([photograph(0)], coverage=asked)
    assert answer["coverage"] == said
    assert (answer["set"] is not None) == known
    assert (answer["set_unknown"] is None) == known


def test_warnings_name_what_is_wrong_with_an_image(exported_rgb: Exported, tmp_path: Path) -> None:
    """Dark, blurred, blank, too small and far images get their warnings; a usual one gets none."""
    package = package_with_rules(exported_rgb, tmp_path)
    good = photograph(2)
    blurred = cv2.GaussianBlur(good, (0, 0), 12)
    images: list[object] = [good, good // 8, blurred, np.full_like(good, 200), good[:19]]
    kinds = [[each["kind"] for each in a["warnings"]] for a in package.answers(images)]
    assert kinds[0] == []
    assert [kind[0] for kind in kinds[1:]] == ["dark", "blurred", "blank", "too_small"]
    noise = np.random.default_rng(0).integers(0, 256, good.shape, dtype=np.uint8)
    far = package_with_rules(exported_rgb, tmp_path / "far", far=1e-3).answers([noise, good])
    assert [[each["kind"] for each in answer["warnings"]] for answer in far] == [["far"], []]
    assert "95% of new images" in far[0]["warnings"][0]["message"]
    unknown = {"dark": None, "blurred": None, "least_side": None, "far": None}
    silent = package_with_rules(exported_rgb, tmp_path / "silent", **unknown)
    assert [a["warnings"] for a in silent.answers([good // 8, blurred, good[:14, :14]])] == [[]] * 3


def test_the_map_is_the_graphs_attention(exported_rgb: Exported, tmp_path: Path) -> None:
    """On request an answer says where the model looked, as shares of the patches."""
    package = package_with_rules(exported_rgb, tmp_path)
    image = photograph(1)
    [answer] = package.answers([image], with_map=True)
    [attention] = package.named_outputs(package.pixels(image)[None], ["attention"])
    assert (answer["map"]["rows"], answer["map"]["columns"]) == (4, 4)
    expected = attention[0].mean(axis=0) / attention[0].mean(axis=0).sum()
    np.testing.assert_allclose(answer["map"]["values"], expected, atol=1e-5)
    assert "map" not in package.answers([image])[0]
