"""Sets, warnings and maps in the answers of a package, read from its files as a server does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from patchline.pipeline.models.answer_rules import AnswerRules, SetThreshold
from patchline.pipeline.packaging.packaged_model import REFERENCE_FILE, PackagedModel
from tests.pipeline.conftest import CLASSES, SIDE, Exported

Array = np.ndarray[Any, Any]


def _photograph(seed: int, side: int = 48) -> Array:
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(coarse, (side, side), interpolation=cv2.INTER_NEAREST))


def _package(exported: Exported, folder: Path, **changed: Any) -> PackagedModel:
    """Return the package with rules for three coverages and for all warnings."""
    thresholds = (
        SetThreshold(coverage=0.9, least_probability=0.3),
        SetThreshold(coverage=0.95, least_probability=0.1),
        SetThreshold(coverage=0.99, least_probability=None, unknown="only 40 validation images"),
    )
    rules = AnswerRules(
        coverage=0.95, thresholds=thresholds, images=40, basis="validation images",
        false_alarms=0.05, dark=64.0, blurred=0.3, least_side=20, far=0.5,
    ).model_copy(update=changed)  # fmt: skip
    description = json.loads(exported.description_file.read_text(encoding="utf-8"))
    description["answers"] = rules.model_dump(mode="json")
    folder.mkdir(exist_ok=True)
    shutil.copy(exported.onnx_file, folder / "model.onnx")
    (folder / "model.json").write_text(json.dumps(description), encoding="utf-8")
    plain = PackagedModel(exported.onnx_file, exported.description_file, threads=1)
    seen = np.stack([plain.pixels(_photograph(seed)) for seed in range(5)])
    [features] = plain.named_outputs(seen, ["features"])
    np.savez(folder / REFERENCE_FILE, reference=features, nearest=1)
    return PackagedModel(folder / "model.onnx", folder / "model.json", threads=1)


def test_a_set_holds_every_probable_class(exported_rgb: Exported, tmp_path: Path) -> None:
    """The set of an image has the classes at or above the threshold, the most probable first."""
    package = _package(exported_rgb, tmp_path)
    for seed in range(12):
        [answer] = package.answers([_photograph(seed)], top_k=len(CLASSES))
        expected = [each["label"] for each in answer["top_k"] if each["probability"] >= 0.1]
        assert answer["set"] == expected
        assert answer["coverage"] == 0.95
        assert answer["set_unknown"] is None


@pytest.mark.parametrize(
    ("asked", "said", "known"), [(0.9, 0.9, True), (0.92, 0.95, True), (0.5, 0.9, True),
                                 (0.97, 0.99, False), (0.999, 0.999, False), (2.0, 2.0, False)],
)  # fmt: skip
def test_another_coverage_is_said_or_unknown(
    exported_rgb: Exported, tmp_path: Path, asked: float, said: float, known: bool
) -> None:
    """A set has the next coverage that the package knows, and says which; else there is none."""
    [answer] = _package(exported_rgb, tmp_path).answers([_photograph(0)], coverage=asked)
    assert answer["coverage"] == said
    assert (answer["set"] is not None) == known
    assert (answer["set_unknown"] is None) == known


def test_warnings_name_what_is_wrong_with_an_image(exported_rgb: Exported, tmp_path: Path) -> None:
    """Dark, blurred, blank, too small and far images get their warnings; a usual one gets none."""
    package = _package(exported_rgb, tmp_path)
    good = _photograph(2)
    blurred = cv2.GaussianBlur(good, (0, 0), 12)
    images: list[object] = [good, good // 8, blurred, np.full_like(good, 200), good[:19]]
    kinds = [[each["kind"] for each in a["warnings"]] for a in package.answers(images)]
    assert kinds[0] == []
    assert [kind[0] for kind in kinds[1:]] == ["dark", "blurred", "blank", "too_small"]
    noise = np.random.default_rng(0).integers(0, 256, good.shape, dtype=np.uint8)
    far = _package(exported_rgb, tmp_path / "far", far=1e-3).answers([noise, good])
    assert [[each["kind"] for each in answer["warnings"]] for answer in far] == [["far"], []]
    assert "95% of new images" in far[0]["warnings"][0]["message"]


def test_a_limit_that_is_not_known_gives_no_warning(exported_rgb: Exported, tmp_path: Path) -> None:
    """Without limits, no image is called anything but blank."""
    unknown = {"dark": None, "blurred": None, "least_side": None, "far": None}
    package = _package(exported_rgb, tmp_path, **unknown)
    good = _photograph(2)
    images: list[object] = [good // 8, cv2.GaussianBlur(good, (0, 0), 12), good[:14, :14]]
    assert [answer["warnings"] for answer in package.answers(images)] == [[], [], []]


def test_the_map_is_the_graphs_attention(exported_rgb: Exported, tmp_path: Path) -> None:
    """On request an answer says where the model looked, as shares of the patches."""
    package = _package(exported_rgb, tmp_path)
    image = _photograph(1)
    [answer] = package.answers([image], with_map=True)
    [attention] = package.named_outputs(package.pixels(image)[None], ["attention"])
    assert (answer["map"]["rows"], answer["map"]["columns"]) == (4, 4)
    expected = attention[0].mean(axis=0) / attention[0].mean(axis=0).sum()
    np.testing.assert_allclose(answer["map"]["values"], expected, atol=1e-5)
    assert "map" not in package.answers([image])[0]


def test_a_package_of_before_answers_without_sets(exported_rgb: Exported) -> None:
    """It has no rules: the set is null, and the answer says why."""
    package = PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)
    [answer, broken] = package.answers([_photograph(0), b"no image"])
    assert answer["set"] is None
    assert answer["coverage"] is None
    assert "older than prediction sets" in answer["set_unknown"]
    assert answer["warnings"] == []
    assert (broken["set"], broken["warnings"]) == (None, [])
    json.dumps([answer, broken])


def test_pixels_know_their_original_size(exported_rgb: Exported) -> None:
    """The decoded image is ready for the network, and says how large it was."""
    package = PackagedModel(exported_rgb.onnx_file, exported_rgb.description_file, threads=1)
    pixels: Any = package.pixels(_photograph(0)[:30])
    assert pixels.shape == (SIDE, SIDE, 3)
    assert pixels.original == (30, 48)
    assert type(np.stack([pixels])) is np.ndarray
