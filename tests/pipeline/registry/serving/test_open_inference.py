"""The Open Inference Protocol v2, byte by byte as the clients of KServe and Triton send it."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pipeline.registry.serving.served import NAME, Registry, Reply, Serving, png
from tests.pipeline.registry.serving.test_predict import b64

INFER = f"/v2/models/{NAME}/infer"
LENGTH = "inference-header-content-length"


def binary(
    server: Serving,
    raw: bytes,
    shape: list[int],
    datatype: str,
    headers: dict[str, str] | None = None,
    **keys: Any,
) -> Reply:
    """Send a binary tensor as Triton's client does."""
    tensor = {
        "name": "image",
        "shape": shape,
        "datatype": datatype,
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [tensor], **keys}).encode()
    headers = {LENGTH: str(len(head)), **(headers or {})}
    body = head + raw
    if headers.get("content-encoding") == "gzip":
        body = gzip.compress(body)
    return server.ask("POST", INFER, body, headers)


def element(content: bytes) -> bytes:
    """Return an element of a binary BYTES tensor."""
    return struct.pack("<I", len(content)) + content


def outputs(reply: Reply) -> dict[str, Any]:
    """Return the outputs by name, those in binary form decoded as Triton's client does."""
    length = int(reply.headers.get(LENGTH, len(reply.body)))
    head, position = json.loads(reply.body[:length]), length
    found: dict[str, Any] = {}
    for output in head["outputs"]:
        if "data" in output:
            found[output["name"]] = output["data"]
            continue
        size = output["parameters"]["binary_data_size"]
        raw, position = reply.body[position : position + size], position + size
        if output["datatype"] == "FP32":
            found[output["name"]] = np.frombuffer(raw, "<f4").reshape(output["shape"]).tolist()
        else:
            texts = []
            while raw:
                [size] = struct.unpack("<I", raw[:4])
                texts.append(raw[4 : 4 + size].decode())
                raw = raw[4 + size :]
            found[output["name"]] = texts
    assert position == len(reply.body)
    return found


def test_the_server_and_the_model_are_described(server: Serving) -> None:
    """Live, ready and metadata, of the server, the model and its version."""
    assert server.ask("GET", "/v2").json["extensions"] == ["binary_tensor_data"]
    assert server.ask("GET", "/v2/health/live").status == 200
    assert server.ask("GET", "/v2/health/ready").json == {"ready": True}
    for path in (f"/v2/models/{NAME}", f"/v2/models/{NAME}/versions/1"):
        content = server.ask("GET", path).json
        assert (content["name"], content["versions"]) == (NAME, ["1"])
        assert [each["name"] for each in content["inputs"]] == ["image"]
        assert server.ask("GET", f"{path}/ready").status == 200
    for path in ("/v2/models/other", f"/v2/models/{NAME}/versions/7"):
        assert server.ask("GET", path).status == 404
        assert server.ask("GET", f"{path}/ready").status == 404
        assert server.ask("POST", f"{path}/infer", b"{}").status == 404


def test_bytes_and_pixels_are_answered_alike(server: Serving, registry: Registry) -> None:
    """Encoded images and pixels, in JSON and in binary form, have the package's probabilities."""
    image = png(7)
    pixels = np.asarray(Image.open(io.BytesIO(image)))
    bytes_, shape = _tensor(datatype="BYTES", shape=[1], data=[b64(image)]), list(pixels.shape)
    replies = [
        binary(server, element(image), [1], "BYTES"),
        binary(server, element(image), [1, 1], "BYTES", headers={"content-encoding": "gzip"}),
        binary(server, pixels.tobytes(), [1, *shape], "UINT8"),
        binary(server, pixels.tobytes(), shape, "UINT8"),
        binary(server, image, [len(image)], "UINT8"),
        binary(server, image, [1, len(image)], "UINT8"),
        server.ask_json(INFER, bytes_),
        server.ask_json(INFER, _tensor(shape=shape, data=pixels.tolist())),
        server.ask_json(INFER, _tensor(shape=shape, data=pixels.ravel().tolist())),
    ]
    package = registry.package(1)
    probabilities = package.outputs(package.pixels(image)[None])[0]
    for reply in replies:
        assert reply.status == 200, reply.body
        found = outputs(reply)
        assert found["label"] == [package.classes[int(np.argmax(probabilities))]]
        assert np.allclose(np.reshape(found["probabilities"], -1), probabilities, atol=1e-5)
        assert json.loads(found["answer"][0])["version"] == "1"
    grey = binary(server, bytes(range(256)) * 2, [16, 32, 1], "UINT8")
    assert len(outputs(grey)["label"]) == 1


def test_rows_of_bytes_are_files(server: Serving) -> None:
    """Each is good or has an error of its own, whatever the others are."""
    image = png(7)
    rows = image + b"hello world".ljust(len(image), b"!")
    found = outputs(binary(server, rows, [2, len(image)], "UINT8"))
    assert [bool(label) for label in found["label"]] == [True, False]
    assert found["probability"][1] == sum(found["probabilities"][3:]) == 0
    errors = [json.loads(answer)["error"] for answer in found["answer"]]
    assert errors[0] is None
    assert "or the bytes of a file" in errors[1]


@pytest.mark.parametrize(
    "shape", [(3, 48, 48), (48, 48, 2), (1, 48, 3), (48, 1, 3), (2, 3, 8, 8), (2, 11)]
)
def test_pixels_of_another_shape_are_refused(server: Serving, shape: tuple[int, ...]) -> None:
    """Channels first, two of them, a row, and texts: none of them is a picture."""
    reply = binary(server, bytes(math.prod(shape)), list(shape), "UINT8")
    assert reply.status == 400, reply.body
    assert "pass (height, width, channels)" in reply.json["error"]


def test_a_request_chooses_its_outputs(server: Serving) -> None:
    """Some of them, some in binary form; the id and the version come back."""
    raw = element(png(1)) + element(png(2))
    wanted = [
        {"name": "label", "parameters": {"binary_data": True}},
        {"name": "probability"},
    ]
    reply = binary(server, raw, [2], "BYTES", outputs=wanted, id="seven")
    assert reply.headers["content-type"] == "application/octet-stream"
    head = json.loads(reply.body[: int(reply.headers[LENGTH])])
    assert (head["id"], head["model_name"], head["model_version"]) == ("seven", NAME, "1")
    found = outputs(reply)
    assert set(found) == {"label", "probability"}
    assert len(found["label"]) == len(found["probability"]) == 2
    everything = binary(server, raw, [2], "BYTES", parameters={"binary_data_output": True})
    head = json.loads(everything.body[: int(everything.headers[LENGTH])])
    assert all("data" not in output for output in head["outputs"])


def _tensor(**changes: Any) -> dict[str, Any]:
    given = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 3], "data": [1, 2, 3]}
    return {"inputs": [{**given, **changes}]}


@pytest.mark.parametrize(
    "content",
    [
        {"inputs": []},
        {"inputs": {"name": "image"}},
        _tensor(name="x"),
        _tensor(datatype="FP32"),
        _tensor(shape=[2, 2, 3]),
        _tensor(shape=[1] * 9),
        _tensor(shape=[0]),
        _tensor(data=[1, 2, 300]),
        _tensor(data=[1.5, 2, 3]),
        _tensor(data=[[1], [2, 3]]),
        _tensor(shape=[2, 2, 3], data=np.zeros((3, 2, 2), int).tolist()),
        _tensor(datatype="BYTES", shape=[2], data=[[b64(png(1))], [b64(png(2))]]),
        _tensor(datatype="BYTES", shape=[1, 2], data=[[b64(png(1)), b64(png(2))]]),
        _tensor(datatype="BYTES", shape=[1], data=["/etc/passwd"]),
        _tensor(parameters={"binary_data_size": 3}),
        {**_tensor(), "outputs": [{"name": "nothing"}]},
    ],
)
def test_a_wrong_request_is_refused(server: Serving, content: dict[str, Any]) -> None:
    """What does not keep to the protocol is answered with 400 and one sentence."""
    reply = server.ask_json(INFER, content)
    assert reply.status == 400, reply.body
    assert reply.json["error"].endswith(".")


@pytest.mark.parametrize("raw", [b"\x05", b"\xff\xff\xff\xff", element(b"ab")[:-1]])
def test_a_damaged_binary_tensor_is_refused(server: Serving, raw: bytes) -> None:
    """Lengths that lead outside, and elements that are missing."""
    assert binary(server, raw, [1], "BYTES").status == 400


@pytest.mark.parametrize("length", ["x", "-1", "99999999"])
def test_a_wrong_length_of_the_json_is_refused(server: Serving, length: str) -> None:
    """The header must name a place within the body."""
    assert server.ask("POST", INFER, b'{"inputs": []}', {LENGTH: length}).status == 400
