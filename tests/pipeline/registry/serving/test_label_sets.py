"""A served multi-label model: each interface answers with the labels above their thresholds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from patchline.pipeline.registry.serving.checked_package import PackageRefusedError, check_package
from tests.pipeline.registry.made_versions import CLASSES, made_package
from tests.pipeline.registry.serving.served import (
    NAME,
    Registry,
    Serving,
    lasting_registry,
    png,
    serving,
)
from tests.pipeline.registry.serving.test_predict import b64
from tests.plugins.tools.label.labelled import rows_of

THRESHOLDS = (0.15, 0.97, 0.95)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Registry:
    folder = tmp_path_factory.mktemp("served_sets")
    return lasting_registry(folder, empty_store, thresholds=THRESHOLDS)


@pytest.fixture(scope="module")
def server(sets: Registry) -> Iterator[Serving]:
    store = f"sqlite:///{sets.folder / 'mlflow.db'}"
    feedback = ("--feedback", str(sets.folder / "labels.csv"))
    with serving(sets.folder, *feedback, env={"MLFLOW_TRACKING_URI": store}) as started:
        yield started


def _labels(answer: dict[str, Any]) -> list[str]:
    return [each["label"] for each in answer["labels"]]


def test_every_interface_gives_the_same_labels(server: Serving, sets: Registry) -> None:
    """`/predict`, `/inside`, `/invocations` and v2 name the labels of the package's own answer."""
    numbers = set()
    for seed in range(6):
        image = png(seed)
        [expected] = sets.package(1).answers([image], top_k=3)
        single = server.predict(image)
        assert single.status == 200, single.body
        assert single.json["label"] == expected["label"]
        assert [each["threshold"] for each in single.json["top"]] == [
            each["threshold"] for each in expected["top_k"]
        ]
        assert single.json["set"] is None
        assert "one label for each image" in single.json["set_unknown"]
        inside = server.ask("POST", "/inside", image, {"content-type": "image/png"}).json
        [record] = server.ask_json(
            "/invocations", {"dataframe_records": [{"image": b64(image)}]}
        ).json["predictions"]
        tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [b64(image)]}
        reply = server.ask_json(f"/v2/models/{NAME}/infer", {"inputs": [tensor]}).json
        outputs = {each["name"]: each["data"] for each in reply["outputs"]}
        assert set(outputs) == {"labels", "probabilities", "answer"}
        whole = {each["label"]: each["probability"] for each in expected["top_k"]}
        assert outputs["probabilities"] == pytest.approx([whole[c] for c in CLASSES], abs=1e-6)
        given = [_labels(each) for each in (single.json, inside, record)]
        given += [json.loads(outputs["labels"][0]), _labels(json.loads(outputs["answer"][0]))]
        assert given == [_labels(expected)] * 5
        numbers.add(len(_labels(expected)))
    assert len(numbers) > 1


def test_probabilities_of_sets_need_not_sum_to_1_but_must_be_probabilities(tmp_path: Path) -> None:
    """A package of sets is accepted; one whose network answers with logits is refused."""
    made_package(tmp_path, seed=3, thresholds=THRESHOLDS)
    package = check_package(tmp_path, 1).package
    pixels = np.full((2, 8, 8, 3), 90, np.uint8)
    assert abs(package.probabilities(pixels).sum(axis=1) - 1).min() > 1e-3
    network = onnx.load(tmp_path / "model.onnx")
    network.graph.node[-1].op_type = "Identity"
    [weights] = [each for each in network.graph.initializer if each.name == "weights"]
    weights.CopyFrom(numpy_helper.from_array(np.full((3, 3), 0.5, np.float32), "weights"))
    onnx.save(network, tmp_path / "model.onnx")
    with pytest.raises(PackageRefusedError, match="no probabilities"):
        check_package(tmp_path, 1)


def test_no_label_is_feedback_only_if_it_is_said(server: Serving, sets: Registry) -> None:
    """A misspelt parameter would make every label a certain negative."""
    for wrong in ("", "?labels=up", "?label=up&none=true", "?none=maybe"):
        refused = server.ask("POST", f"/feedback{wrong}", png(1))
        assert refused.status == HTTPStatus.BAD_REQUEST, wrong
    assert "none=true" in server.ask("POST", "/feedback", png(1)).json["error"]
    assert not (sets.folder / "labels.csv").exists()
    for query, cell in (("label=up&label=down", '["down", "up"]'), ("none=true", "[]")):
        kept = server.ask("POST", f"/feedback?{query}", png(1))
        assert kept.status == HTTPStatus.OK, kept.body
        [row] = rows_of(sets.folder / "labels.csv")
        assert json.loads(row["label"]) == json.loads(cell) == kept.json["labels"]
