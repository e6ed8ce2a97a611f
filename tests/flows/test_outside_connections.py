"""No command looks up a name or talks to another machine, and no library leaves a state file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.outside_connections import (
    BARE,
    as_a_stranger,
    missing_tracer,
    read_trace,
    record,
)
from tests.conftest import Run
from tests.structure.import_rules import imports

pytestmark = pytest.mark.skipif(bool(missing_tracer()), reason=missing_tracer())

_TRACE = r"""
41 connect(7, {sa_family=AF_UNIX, sun_path="\x2f\x76\x61\x72\x2f\x72\x75\x6e\x2f\x6e\x73\x63\x64\x2f\x73\x6f\x63\x6b\x65\x74"}, 110) = -1 ENOENT (No such file or directory)
41 connect(7, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("\x31\x32\x37\x2e\x30\x2e\x30\x2e\x35\x33")}, 16) = 0
41 sendto(7, "\x82\x17\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04\x73\x6f\x6d\x65\x04\x68\x6f\x73\x74\x00\x00\x1c\x00\x01", 27, MSG_NOSIGNAL, NULL, 0) = 27
42 connect(8, {sa_family=AF_INET6, sin6_port=htons(443), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "\x32\x30\x30\x31\x3a\x64\x62\x38\x3a\x3a\x31", &sin6_addr), sin6_scope_id=0}, 28) = 0
43 connect(9, {sa_family=AF_INET, sin_port=htons(5000), sin_addr=inet_addr("\x31\x32\x37\x2e\x30\x2e\x30\x2e\x31")}, 16) = 0
"""  # noqa: E501 - as strace writes it


def test_a_look_up_and_an_outside_connection_are_seen(tmp_path: Path) -> None:
    """The recorder reads a question to a name server, and sees what a real process connects to."""
    assert read_trace(_TRACE) == (("some.host",), ("2001:db8::1:443",))
    script = """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))  # sends nothing
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9))
"""
    found = record([sys.executable, "-I", "-c", script], tmp_path, as_a_stranger(tmp_path))
    assert (found.code, found.look_ups, found.connections) == (0, (), ("192.0.2.1:9",))


def test_a_model_is_used_without_a_word_to_anybody(finished_run: Run, tmp_path: Path) -> None:
    """By a process that has the package and MLflow, but no Patchline that asks for quiet.

    onnxruntime reports some seconds after its import what it has noted in a state file by then, so
    that there must be none.
    """
    [package] = finished_run.folder.glob("mlruns/*/models/*/artifacts")
    image = next(finished_run.folder.glob("photos/*/*.png"))
    asked_of_mlflow = {"MLFLOW_DISABLE_TELEMETRY": "true"}  # its own reports are not the package's
    command = [sys.executable, "-I", "-c", BARE, str(package), str(image), "0"]
    found = record(command, tmp_path, {**as_a_stranger(tmp_path), **asked_of_mlflow})
    assert found.code == 0, found.err
    assert (found.look_ups, found.connections) == ((), ())
    assert not list(tmp_path.rglob("*onnxruntime*"))


def test_only_one_module_imports_onnxruntime() -> None:
    """The one that turns its telemetry off before; quantization imports that one first."""
    root = Path(__file__).resolve().parents[2]
    importing = {
        file.relative_to(root).as_posix()
        for package in ("pipeline", "flows", "plugins")
        for file in (root / package).rglob("*.py")
        if b"onnxruntime" in file.read_bytes()
        for _, module in imports(file)
        if module.split(".")[0] == "onnxruntime"
    }
    assert importing == {"pipeline/models/onnx_session.py", "plugins/tools/export/exporting.py"}
    quiet = "from patchline.pipeline.packaging.packaged_model import"
    assert quiet in (root / "plugins/tools/export/exporting.py").read_text(encoding="utf-8")
