"""The package with the server of `patchline serve`, as a folder that `docker build` takes.

No image is built here. Instead, the server of the folder is started with nothing but the libraries
of its `requirements.txt`, and has to answer as the package does.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from packaging.utils import canonicalize_name

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.local_services import answers
from patchline.pipeline.packaging.answer_json import AnswerJson, label_answer
from patchline.pipeline.packaging.answer_judge import thresholds_of
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.web.config import TOKEN_VARIABLE
from patchline.pipeline.workers.worker_start import stop_group
from patchline.plugins.tools.export.comparison import EXACT, Answers, ExportCandidate, FormInputs
from patchline.plugins.tools.export.container_files import ServedVersion, command, write_container

Array = np.ndarray[Any, Any]
MODEL_FOLDER = "model/artifacts"
_ASKED = 8
"""Images that the server is asked about."""
_SECONDS_TO_START, _SECONDS_TO_ANSWER = 120.0, 60.0
_LOOPBACK = "127.0.0.1"
_WITHOUT_OTHERS = """\
import runpy, sys

absent = set(sys.argv.pop(1).split(","))


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
runpy.run_module("patchline.pipeline.registry.serving", run_name="__main__", alter_sys=True)
"""
"""Starts the server with those libraries alone that the image has, whatever is installed here."""


def container_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the folder."""
    folder = inputs.scratch / "container"
    folder.mkdir()
    served = ServedVersion(inputs.name, inputs.version)
    write_container(served, inputs.package_folder, folder)
    yield ExportCandidate(
        name="container",
        folder=folder,
        model_files=(f"{MODEL_FOLDER}/{ONNX_FILE}",),
        open=partial(_opened, folder / MODEL_FOLDER),
        bounds=EXACT,
        details={"precision": "float32"},
        is_timed=False,
        check=partial(check_server, folder, served, can_compare=_is_plain(inputs)),
    )


def _is_plain(inputs: FormInputs) -> bool:
    """Return whether a PNG file holds an image as the model takes it."""
    channels = inputs.package.image["channels"]
    return inputs.package.mapping.is_plain and channels in (1, 3)


def _opened(artifacts: Path, threads: int) -> Answers:
    model = PackagedModel(artifacts / ONNX_FILE, artifacts / DESCRIPTION_FILE, threads)
    return model.probabilities


def check_server(
    folder: Path,
    served: ServedVersion,
    images_NHWC: Array,
    expected_NK: Array,
    *,
    can_compare: bool = True,
) -> None:
    """Start the server of a folder, and compare its answers with the package's.

    Args:
        folder: of the container.
        served: the version.
        images_NHWC: uint8, in the size that the model takes.
        expected_NK: the package's probabilities.
        can_compare: whether image files hold such images; otherwise the server only has to start.

    Raises:
        PackagingError: if it does not start, or an answer differs.
    """
    written = folder / MODEL_FOLDER / DESCRIPTION_FILE
    description = json.loads(written.read_text(encoding="utf-8"))
    classes, thresholds_K = description["classes"], thresholds_of(description)
    asked = images_NHWC[: _ASKED if can_compare else 0]
    with running_server(folder, served) as (address, token):
        for image_HWC, expected_K in zip(asked, expected_NK, strict=False):
            answer = _answer(address, token, image_HWC)
            if thresholds_K is not None:
                _check_labels(answer, label_answer(expected_K, thresholds_K, classes, 1))
                continue
            best = int(expected_K.argmax())
            gap = abs(float(answer["probability"]) - float(expected_K[best]))
            if answer["label"] != classes[best] or gap > EXACT.largest:
                raise PackagingError(
                    f"The server of the container answers '{answer['label']}' "
                    f"({answer['probability']:.6f}) where the package answers '{classes[best]}' "
                    f"({expected_K[best]:.6f}). Report this as a bug, with the model's plugins."
                )


def _check_labels(answer: dict[str, Any], expected: AnswerJson) -> None:
    """Compare the labels of a server's answer, and the largest probability, with the package's."""
    given = [each["label"] for each in answer["labels"]]
    own = [each["label"] for each in expected["labels"]]
    first, own_first = answer["top"][0], expected["top_k"][0]
    gap = abs(float(first["probability"]) - own_first["probability"])
    if given != own or gap > EXACT.largest:
        raise PackagingError(
            f"The server of the container gives the labels {given} (highest probability "
            f"{first['probability']:.6f}) where the package gives {own} "
            f"({own_first['probability']:.6f}). Report this as a bug, with the model's plugins."
        )


@contextmanager
def running_server(
    folder: Path, served: ServedVersion, python: str = sys.executable
) -> Iterator[tuple[str, str]]:
    """Run the server of a container's folder; yield its address and token.

    Args:
        folder: of the container.
        served: the version.
        python: the interpreter; one of another environment needs no fence around its libraries.

    Raises:
        PackagingError: if it does not start.
    """
    token, port = secrets.token_hex(16), _free_port()
    arguments = command(served, str(folder.resolve() / "model"), _LOOPBACK, port)
    own = python == sys.executable
    start = ["-P", "-c", _WITHOUT_OTHERS, _absent(folder), *arguments[3:]] if own else arguments
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    with (folder.parent / f"{folder.name}-server.log").open("w+b") as log:
        process = subprocess.Popen(
            [python, *start],
            cwd=folder,
            env={
                **kept,
                "PYTHONPATH": str(folder.resolve() / "app"),
                "PYTHONDONTWRITEBYTECODE": "1",
                TOKEN_VARIABLE: token,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            address = f"http://{_LOOPBACK}:{port}"
            if not _is_ready(process, address):
                log.seek(0)
                lines = log.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
                raise PackagingError(
                    f"The server of the container does not start: {lines[-1][:300]}. Report this "
                    "as a bug, with the model's plugins."
                )
            yield address, token
        finally:
            stop_group(process)


def _absent(folder: Path) -> str:
    """Return the top-level modules that are installed here but not pinned, for a command line."""
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").split()
    pinned = {line.partition("==")[0] for line in lines}
    absent = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not pinned & {str(canonicalize_name(each)) for each in distributions}
    }
    return ",".join(sorted(absent - sys.stdlib_module_names - {"patchline"}))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((_LOOPBACK, 0))
        return int(listening.getsockname()[1])


def _is_ready(process: subprocess.Popen[bytes], address: str) -> bool:
    url = f"{address}/readyz"
    wait_until(
        lambda: process.poll() is not None or answers(url, _SECONDS_TO_ANSWER),
        0.1,
        _SECONDS_TO_START,
    )
    return answers(url, _SECONDS_TO_ANSWER)


def _answer(address: str, token: str, image_HWC: Array) -> dict[str, Any]:
    """Return the server's answer to one image, sent as a lossless file that it decodes."""
    import cv2

    given = image_HWC[:, :, ::-1] if image_HWC.shape[2] == 3 else image_HWC  # noqa: PLR2004 - RGB
    _, encoded = cv2.imencode(".png", np.ascontiguousarray(given))
    request = urllib.request.Request(  # noqa: S310 - of the server that was started
        f"{address}/predict",
        data=encoded.tobytes(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "image/png"},
    )
    try:
        with _direct().open(request, timeout=_SECONDS_TO_ANSWER) as response:
            answer: dict[str, Any] = json.loads(response.read())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise PackagingError(
            f"The server of the container does not answer: {error}. Report this as a bug, with "
            "the model's plugins."
        ) from error
    return answer


def _direct() -> urllib.request.OpenerDirector:
    """Return an opener that asks no proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
