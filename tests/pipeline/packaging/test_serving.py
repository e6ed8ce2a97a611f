"""`mlflow models serve` and `mlflow.pyfunc` answer from a package, one image or many."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow.models
import mlflow.pyfunc
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.standalone_file import write_model_server
from patchline.pipeline.registry.registration import save_as_mlflow_model
from patchline.pipeline.tracking.tracked_run import TrackedRun
from tests.conftest import draw_photo
from tests.patience import patient
from tests.pipeline.conftest import CLASSES, Exported

START_SECONDS = patient(180.0)


@pytest.fixture(scope="module")
def packaged(exported_rgb: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a package as MLflow stores it; tests must not change it."""
    folder = tmp_path_factory.mktemp("served") / "package"
    shutil.copytree(exported_rgb.onnx_file.parent, folder)
    write_model_server(folder / "model_server.py")
    (folder / "model_card.md").write_text("# card\n")
    return save_as_mlflow_model(TrackedRun("run-1", "0", folder), "m-1", folder)


def _png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(draw_photo(number, number, 24)).save(file, format="PNG")
    return file.getvalue()


def _expected(exported: Exported, images: list[bytes]) -> list[dict[str, Any]]:
    model = PackagedModel(exported.onnx_file, exported.description_file)
    return [model.answers([image], top_k=2)[0] for image in images]


def _assert_same(answers: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        assert answer["error"] is None
        assert answer["probability"] == pytest.approx(other["probability"], abs=1e-5)
        assert [e["label"] for e in answer["top_k"]] == [e["label"] for e in other["top_k"]]
    assert {answer["label"] for answer in answers} <= set(CLASSES)


def test_one_image_or_many_are_answered_alike(packaged: Path, exported_rgb: Exported) -> None:
    """Alone or in a table, as bytes, base64, path or array, each image gets the same answer."""
    images = [_png(number) for number in range(4)]
    expected = _expected(exported_rgb, images)
    model = mlflow.pyfunc.load_model(str(packaged))
    together = model.predict(pd.DataFrame({"image": images}), params={"top_k": 2})
    _assert_same(together, expected)
    file = packaged.parent / "1.png"
    file.write_bytes(images[0])
    array = np.asarray(Image.open(file))
    for form in (images[0], base64.b64encode(images[0]).decode(), str(file), array):
        alone = model.predict(pd.DataFrame({"image": [form]}), params={"top_k": 2})
        _assert_same(alone, expected[:1])
    assert len(model.predict(pd.DataFrame({"image": images[:1]}))[0]["top_k"]) == 5


@pytest.mark.parametrize("content_type", ["csv", "json"])
def test_the_command_predicts_a_table_of_paths(
    packaged: Path,
    exported_rgb: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content_type: str,
) -> None:
    """`mlflow models predict` reads the user's own files, of a table with a column `image`."""
    images = [_png(number) for number in range(3)]
    files = [tmp_path / f"photo {number}.png" for number in range(3)]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(image)
    names = [str(files[0]), "photo 1.png", str(files[2])]  # relative to the working directory
    table = pd.DataFrame({"image": names})
    given, answered = tmp_path / f"images.{content_type}", tmp_path / "answers.json"
    if content_type == "csv":
        table.to_csv(given, index=False)
    else:
        given.write_text(json.dumps({"dataframe_split": table.to_dict(orient="split")}))
    monkeypatch.chdir(tmp_path)
    mlflow.models.predict(  # type: ignore[no-untyped-call]
        str(packaged),
        input_path=str(given),
        output_path=str(answered),
        content_type=content_type,
        env_manager="local",
    )
    answers = json.loads(answered.read_text())["predictions"]
    expected = _expected(exported_rgb, images)
    assert [answer["error"] for answer in answers] == [None] * 3
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]


def test_a_client_of_the_server_reads_no_file(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the server's process nor in one that only says that it serves."""
    (tmp_path / "secret.png").write_bytes(_png(0))
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")
    model = mlflow.pyfunc.load_model(str(packaged))
    [answer] = model.predict(pd.DataFrame({"image": [str(tmp_path / "secret.png")]}))
    assert "is not base64" in answer["error"]


@pytest.fixture
def served(packaged: Path, tmp_path: Path) -> Iterator[str]:
    """Serve the package as a user would, and end the server with all its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["models", "serve", "--model-uri", str(packaged), "--env-manager", "local"]
    programs = Path(sys.executable).parent
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [str(programs / "mlflow"), *command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(server, address, tmp_path / "server.log")
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/ping", timeout=patient(20)):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def _ask(address: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{address}/invocations",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=patient(120)) as response:
        predictions: list[dict[str, Any]] = json.loads(response.read())["predictions"]
    return predictions


@pytest.mark.slow
def test_mlflow_serves_the_package(served: str, packaged: Path, exported_rgb: Exported) -> None:
    """Base64 in, label, probability and top k out; broken images and paths get own errors."""
    images = [_png(number) for number in range(3)]
    encoded = [base64.b64encode(image).decode() for image in images]
    broken = base64.b64encode(images[0][:60]).decode()
    file = packaged.parent / "on_the_server.png"
    file.write_bytes(images[0])
    rows = [encoded[0], broken, encoded[1], "no base64!", str(file), encoded[2]]
    records = [{"image": row} for row in rows]
    answers = _ask(served, {"dataframe_records": records, "params": {"top_k": 2}})
    _assert_same([answers[0], answers[2], answers[5]], _expected(exported_rgb, images))
    assert [bool(answer["error"]) for answer in answers] == [False, True, False, True, True, False]
    assert [answer["label"] for answer in answers if answer["error"]] == [None] * 3
    assert "is not base64" in answers[4]["error"]
    [alone] = _ask(served, {"dataframe_records": [{"image": encoded[1]}]})
    assert alone["label"] == answers[2]["label"]
    assert len(alone["top_k"]) == 5
