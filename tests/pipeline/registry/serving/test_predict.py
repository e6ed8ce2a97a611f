"""`/predict` and `/invocations` of a real server: every form of request gets the same answer."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from tests.pipeline.registry.serving.served import NAME, Registry, Serving, metric, png

BOUNDARY = "----of-the-tests"


def form(files: list[tuple[str, bytes]], **fields: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and the header of a form with files and fields."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        f"Content-Type: image/png\r\n\r\n".encode()
        + content
        for name, content in files
    ]
    parts += [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        for name, value in fields.items()
    ]
    body = b"\r\n".join([*parts, f"--{BOUNDARY}--\r\n".encode()])
    return body, {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def b64(content: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(content).decode()


def expected(registry: Registry, image: bytes) -> dict[str, Any]:
    """Return the answer of the package itself."""
    return registry.package(1).answers([image], top_k=5)[0]


def test_every_form_of_request_is_answered_alike(server: Serving, registry: Registry) -> None:
    """Raw, as curl sends it, in a form, and in JSON, an image has the answer of its package."""
    image = png(3)
    body, headers = form([("a.png", image)])
    replies = [
        server.predict(image),
        server.predict(image, {"content-type": "application/x-www-form-urlencoded"}),
        server.ask("POST", "/predict", body, headers),
        server.ask_json("/predict", {"image": b64(image)}),
        server.ask_json("/predict", {"image": f"data:image/png;base64,{b64(image)}"}),
        server.ask_json("/predict", {"image": base64.encodebytes(image).decode()}),
        server.ask_json("/predict", {"image": {"b64": b64(image)}}),
    ]
    answer = expected(registry, image)
    for reply in replies:
        assert reply.status == 200, reply.body
        assert reply.json["label"] == answer["label"]
        assert reply.json["probability"] == pytest.approx(answer["probability"], abs=1e-6)
        assert [each["label"] for each in reply.json["top"]] == [
            each["label"] for each in answer["top_k"]
        ]
        assert reply.json["version"] == reply.headers["patchline-model-version"] == "1"
        assert {"set", "coverage", "warnings"} <= reply.json.keys()


def test_several_images_are_answered_in_order(server: Serving, registry: Registry) -> None:
    """A damaged image has its reason, and the others their answers, in a form and in JSON."""
    images = [png(1), png(1)[:50], png(2)]
    body, headers = form([(f"{i}.png", image) for i, image in enumerate(images)], top_k="2")
    in_form = server.ask("POST", "/predict", body, headers).json
    in_json = server.ask_json("/predict", {"images": [b64(i) for i in images], "top_k": 2}).json
    assert [each["file"] for each in in_form["answers"]] == ["0.png", "1.png", "2.png"]
    for content in (in_form, in_json):
        first, damaged, last = content["answers"]
        assert damaged["label"] is None
        assert damaged["error"]
        assert first["label"] == expected(registry, images[0])["label"]
        assert last["label"] == expected(registry, images[2])["label"]
        assert len(last["top"]) == 2
        assert content["version"] == "1"


@pytest.mark.parametrize(
    "path",
    ["predict?top_k=0", "predict?top_k=x", "predict?map=maybe", "predict?coverage=2",
     "predict?coverage=x", "predict?topk=3", "inside?topk=3", "invocations?top_k=3",
     f"v2/models/{NAME}/infer?top_k=3"],
)  # fmt: skip
def test_wrong_options_are_refused(server: Serving, path: str) -> None:
    """An option that is unknown, or that cannot be met, is not ignored."""
    reply = server.ask("POST", f"/{path}", png(1))
    assert reply.status == 400
    assert re.search("top_k is|map is|coverage is|no parameter 'top", reply.json["error"])


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {"content-type": "image/png"}, 400),
        (b"no image", {"content-type": "image/jpeg"}, 422),
        (b64(png(1)).encode(), {"content-type": "image/png"}, 422),
        (png(1)[:60], {"content-type": "image/png"}, 422),
        (b"[" * 100_000, {"content-type": "application/json"}, 400),
        (b'{"image": "http://127.0.0.1/x.png"}', {"content-type": "application/json"}, 400),
        (b'{"images": []}', {"content-type": "application/json"}, 400),
        (b'{"url": "http://127.0.0.1/"}', {"content-type": "application/json"}, 400),
        (b"<html>", {"content-type": "text/html"}, 415),
        (b"--x\r\n", {"content-type": "multipart/form-data; boundary=x"}, 400),
        (b"x", {"content-type": "image/png", "content-encoding": "br"}, 415),
        (b"x", {"content-type": "image/png", "content-encoding": "gzip"}, 400),
    ],
)
def test_a_wrong_request_is_one_sentence(
    server: Serving, body: bytes, headers: dict[str, str], status: int
) -> None:
    """Damaged, empty, of another type, nested without end: a status below 500, and a reason."""
    reply = server.ask("POST", "/predict", body, headers)
    assert reply.status == status, reply.body
    assert reply.json["error"].endswith(".")
    assert "Traceback" not in reply.body.decode()


def test_a_path_is_never_read(server: Serving, registry: Registry) -> None:
    """The path of a file of the server is no image, in no interface."""
    file = registry.folder / "abcd"
    file.write_bytes(png(1))
    for path in (str(file), "/etc/passwd", f"file://{file}"):
        in_json = server.ask_json("/predict", {"image": path})
        assert in_json.status in (400, 422)
        [row] = server.ask_json("/invocations", {"inputs": [path]}).json["predictions"]
        assert row["label"] is None
        assert row["error"]
        said = in_json.body.decode().replace(path[:60], "")  # what was sent may be quoted, cut off
        assert str(registry.folder) not in said


def test_mlflows_forms_are_answered(server: Serving, registry: Registry) -> None:
    """Records, a split table, a list and a column have the answers of the package.

    A table without the column, or without a row, is a wrong request.
    """
    image = png(5)
    text, answer = b64(image), expected(registry, image)
    forms: list[dict[str, Any]] = [
        {"dataframe_records": [{"image": text}, {"image": "no base64!"}]},
        {"dataframe_split": {"columns": ["image"], "data": [[text], ["no base64!"]]}},
        {"inputs": [text, "no base64!"]},
        {"inputs": {"image": [text, "no base64!"]}},
        {"instances": [{"image": text}, {"image": "no base64!"}]},
    ]
    for content in forms:
        reply = server.ask_json("/invocations", {**content, "params": {"top_k": 2}})
        assert reply.status == 200, reply.body
        good, bad = reply.json["predictions"]
        assert good["label"] == answer["label"]
        assert len(good["top_k"]) == 2
        assert bad["error"]
        assert bad["label"] is None
    raw = server.ask("POST", "/invocations", image, {"content-type": "application/octet-stream"})
    assert raw.json["predictions"][0]["label"] == answer["label"]
    assert server.ask("GET", "/ping").status == 200
    for wrong in (
        {},
        {"dataframe_records": [{"x": 1}]},
        {"inputs": 3},
        {"inputs": [], "params": 3},
    ):
        assert server.ask_json("/invocations", wrong).status == 400


def test_the_metrics_count_what_was_answered(server: Serving) -> None:
    """Requests, errors, batches, predicted classes and the version are in `/metrics`."""
    before = server.ask("GET", "/metrics").body.decode()
    label = server.predict(png(4)).json["label"]
    server.predict(b"no image")
    after = server.ask("GET", "/metrics").body.decode()

    def risen(name: str) -> float:
        return metric(after, name) - metric(before, name)

    assert risen("patchline_requests_total") >= 2
    assert risen("patchline_unreadable_images_total") == 1
    assert risen("patchline_batch_images_count") == 1
    assert f'patchline_predicted_images_total{{label="{label}",version="1"}}' in after
    assert f'patchline_model_info{{name="{NAME}",version="1"}} 1.0' in after
    assert 'path="/predict",status="422"' in after


def test_the_pages_load_nothing_from_elsewhere(server: Serving) -> None:
    """The pages and their files name no other server, and a policy forbids it."""
    for path in ("/", "/docs", "/static/page.js", "/static/interface.js", "/static/page.css"):
        reply = server.ask("GET", path)
        assert reply.status == 200
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert b"//" not in reply.body.replace(b"// ", b"")
    for path in ("/static/../config.py", "/static/%2e%2e/config.py", "/static//etc/passwd"):
        assert server.ask("GET", path).status == 404
