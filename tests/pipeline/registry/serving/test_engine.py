"""Images of many requests take turns, and what the server's page shows of a prediction."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.engine import FairQueue, inside_views
from tests.conftest import Run
from tests.pipeline.registry.serving.served import Registry, Serving, png
from tests.pipeline.registry.serving.test_predict import b64


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    """The single image of a later request is taken second."""
    queue: FairQueue[str] = FairQueue()
    queue.put("large", [f"large {each}" for each in range(5)])
    queue.put("small", ["small"])
    assert queue.take(3) == ["large 0", "small", "large 1"]
    assert queue.take(9) == ["large 2", "large 3", "large 4"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20), st.integers(1, 7))
def test_everything_is_taken_once_and_in_its_order(puts: list[tuple[int, int]], most: int) -> None:
    """Whatever the groups, each item comes out once, and those of a group in order."""
    queue: FairQueue[tuple[int, int]] = FairQueue()
    expected: dict[int, list[tuple[int, int]]] = {}
    number = 0
    for group, count in puts:
        items = [(group, number + each) for each in range(count)]
        number += count
        expected.setdefault(group, []).extend(items)
        queue.put(group, items)
    queue.close()
    taken: list[tuple[int, int]] = []
    while batch := queue.take(most):
        assert len(batch) <= most
        taken += batch
    for group, items in expected.items():
        assert [each for each in taken if each[0] == group] == items
    assert len(taken) == number


def test_blocks_are_those_of_the_package(finished_run: Run) -> None:
    """Attention and readings are the package's outputs; the last reading is the answer."""
    [file] = finished_run.folder.glob("mlruns/**/artifacts/**/model.onnx")
    package = PackagedModel(file, file.with_name("model.json"))
    images = sorted((finished_run.folder / "photos").rglob("*.png"))[:2]
    pixels = [package.pixels(image) for image in images]
    stacked = np.stack(pixels)
    maps_BLhw, probabilities_BK = package.named_outputs(stacked, ["attention", "probabilities"])
    views = inside_views(package, pixels)
    for view, maps_Lhw, row_K in zip(views, maps_BLhw, probabilities_BK, strict=True):
        assert len(view["blocks"]) == len(maps_Lhw)
        for block, map_hw in zip(view["blocks"], maps_Lhw, strict=True):
            np.testing.assert_allclose(block["attention"], map_hw, atol=1e-6)
        last = view["blocks"][-1]["reading"][0]
        assert last["label"] == package.classes[int(row_K.argmax())]
        assert last["probability"] == pytest.approx(float(row_K.max()), abs=1e-4)
    for view, pixels_HWC in zip(views, pixels, strict=True):
        _, _, encoded = view["seen"].partition(",")
        assert np.array_equal(package.pixels(base64.b64decode(encoded)), pixels_HWC)


def test_what_is_not_one_image_is_refused(server: Serving, registry: Registry) -> None:
    """As by `/predict`; a package without blocks shows the image alone."""
    texts = [b64(png(seed)) for seed in (1, 2)]
    for answer, status in (
        (server.ask("POST", "/inside", b"no image", {"content-type": "image/png"}), 422),
        (server.ask_json("/inside", {"images": texts}), 400),
    ):
        assert answer.status == status
        assert answer.json["error"].endswith(".")
    assert "attention" not in registry.package(1).output_names
    assert server.ask_json("/inside", {"image": texts[0]}).json["blocks"] == []
