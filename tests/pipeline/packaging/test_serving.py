"""`mlflow models serve` and `mlflow.pyfunc` answer from a package, one image or many."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import mlflow.models
import mlflow.pyfunc
import pandas as pd
import pytest

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.standalone_file import write_model_server
from patchline.pipeline.registry.registration import save_as_mlflow_model
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from tests.conftest import draw_photo, encoded
from tests.free_ports import free_port
from tests.patience import patient, until
from tests.pipeline.conftest import Exported


@pytest.fixture(scope="module")
def packaged(exported_rgb: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a package as MLflow stores it; tests must not change it."""
    folder = tmp_path_factory.mktemp("served") / "package"
    shutil.copytree(exported_rgb.onnx_file.parent, folder)
    write_model_server(folder / "model_server.py")
    (folder / "model_card.md").write_text("# card\n")
    return save_as_mlflow_model(TrackedRun("run-1", "0", folder), "m-1", folder)


def _png(number: int) -> bytes:
    return encoded(draw_photo(number, number, 24))


def _expected(exported: Exported, images: list[bytes]) -> list[dict[str, Any]]:
    model = PackagedModel(exported.onnx_file, exported.description_file)
    return [model.answers([image], top_k=2)[0] for image in images]


def test_the_command_predicts_a_table_of_paths(
    packaged: Path, exported_rgb: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow models predict` reads the user's own files, of a table with a column `image`."""
    images = [_png(number) for number in range(3)]
    files = [tmp_path / f"photo {number}.png" for number in range(3)]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(image)
    names = [str(files[0]), "photo 1.png", str(files[2])]  # relative to the working directory
    given, answered = tmp_path / "images.csv", tmp_path / "answers.json"
    pd.DataFrame({"image": names}).to_csv(given, index=False)
    monkeypatch.chdir(tmp_path)
    mlflow.models.predict(  # type: ignore[no-untyped-call]
        str(packaged),
        input_path=str(given),
        output_path=str(answered),
        content_type="csv",
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


def test_the_forms_of_mlflows_server_are_answered(packaged: Path) -> None:
    """`{"b64": …}` and `data:` are base64, pixels not."""
    from mlflow.pyfunc.scoring_server import infer_and_parse_data

    model, text = mlflow.pyfunc.load_model(str(packaged)), base64.b64encode(_png(0)).decode()
    schema = model.metadata.get_input_schema()
    for content, good in (
        ({"inputs": [text, f"data:image/png;base64,{text}"]}, 2),
        ({"dataframe_records": [{"image": {"b64": text}}]}, 1),
        ({"inputs": draw_photo(0, 0, 24).transpose(2, 0, 1).tolist()}, 0),
    ):
        answers = model.predict(infer_and_parse_data(content, schema))
        assert sum(answer["error"] is None for answer in answers) == good


@pytest.mark.slow
def test_mlflow_serves_the_package(packaged: Path, exported_rgb: Exported, tmp_path: Path) -> None:
    """Base64 in, label, probability and top k out; broken images and paths get own errors."""
    port = str(free_port())
    programs, log = Path(sys.executable).parent, tmp_path / "server.log"
    command = ["models", "serve", "--model-uri", str(packaged), "--env-manager", "local"]
    address = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/ping"):
            return True
        return False

    def ask(question: dict[str, Any]) -> list[dict[str, Any]]:
        request = urllib.request.Request(
            f"{address}/invocations",
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=patient(120)) as response:
            predictions: list[dict[str, Any]] = json.loads(response.read())["predictions"]
        return predictions

    images = [_png(number) for number in range(3)]
    encoded = [base64.b64encode(image).decode() for image in images]
    broken = base64.b64encode(images[0][:60]).decode()
    file = packaged.parent / "on_the_server.png"
    file.write_bytes(images[0])
    rows = [encoded[0], broken, encoded[1], "no base64!", str(file), encoded[2]]
    records = [{"image": row} for row in rows]
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [str(programs / "mlflow"), *command, "--host", "127.0.0.1", "--port", port],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(is_ready, log.read_text, seconds=180)
        answers = ask({"dataframe_records": records, "params": {"top_k": 2}})
        [alone] = ask({"dataframe_records": [{"image": encoded[1]}]})
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    for place, expected in zip((0, 2, 5), _expected(exported_rgb, images), strict=True):
        assert answers[place]["error"] is None
        assert answers[place]["probability"] == pytest.approx(expected["probability"], abs=1e-5)
        given, own = ([e["label"] for e in a["top_k"]] for a in (answers[place], expected))
        assert given == own
    assert [answer["label"] for answer in (answers[1], *answers[3:5])] == [None] * 3
    assert "is not base64" in answers[4]["error"]
    assert (alone["label"], len(alone["top_k"])) == (answers[2]["label"], 5)
