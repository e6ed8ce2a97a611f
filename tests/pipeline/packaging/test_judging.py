"""Sets, warnings and maps in the answers of a package, read from its files as a server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.pipeline.conftest import CLASSES, Exported
from tests.pipeline.ruled_package import package_with_rules, photograph

Array = np.ndarray[Any, Any]


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
