"""`patchline serve`: what it refuses, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import patchline_here
from tests.pipeline.registry.serving.served import NAME, Registry
from tests.pipeline.registry.serving.test_access_control import TOKEN


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--host 0.0.0.0", "needs a token"),
        ("--host ::", "needs a token"),
        ("--token-file .", "cannot be read (Is a directory). Give a text file"),
        ("--token-file short", "at least 16 characters"),
        (
            "--token-file public",
            "may be read or changed by other users (mode 0644). Run `chmod",
        ),
        (
            "--tls-certificate short --tls-key public",
            "may be read or changed by other users (mode 0644)",
        ),
        ("--root-path flowers", "must begin with a slash"),
        ("--tls-certificate short", "both --tls-certificate and --tls-key"),
        ("--tls-certificate short --tls-key short", "cannot be used with the key"),
        ("--host 192.0.2.1 --token-file long", "cannot listen on 192.0.2.1"),
        ("--threads -1", "threads"),
    ],
)
def test_wrong_settings_are_said(
    registry: Registry, tmp_path: Path, arguments: str, sentence: str
) -> None:
    """What cannot be served is refused before anything listens, with exit code 2."""
    (tmp_path / "short").write_text("abc")
    for name in ("long", "public"):
        (tmp_path / name).write_text(TOKEN)
    for name, mode in (("short", 0o600), ("long", 0o600), ("public", 0o644)):
        (tmp_path / name).chmod(mode)
    own = ("short", "long", "public")
    given = [str(tmp_path / each) if each in own else each for each in arguments.split()]
    done = patchline_here("serve", NAME, *given, cwd=registry.folder)
    assert done.code == 2
    assert sentence in done.err


def test_a_missing_model_is_said(registry: Registry) -> None:
    """A model, a version or an alias that is not there is named, with what there is."""
    for reference, words in (
        ("colors", "Did you mean 'colours'?"),
        (f"{NAME}@champoin", "Did you mean 'champion'?"),
        (f"{NAME}/9", "has no version 9"),
        ("a b", "is not a model reference"),
    ):
        done = patchline_here("serve", reference, cwd=registry.folder)
        assert done.code == 2
        assert words in done.err


def test_nothing_heavy_is_loaded(registry: Registry) -> None:
    """The process that serves has neither torch nor MLflow, Prefect or pandas in memory."""
    script = (
        "import json, sys\n"
        "from patchline.plugins.tools.serve import command\n"
        "import patchline.pipeline.registry.serving.server as server\n"
        "loaded = lambda: sorted({name.partition('.')[0] for name in sys.modules})\n"
        "server.serve = lambda *a, **k: print(json.dumps(loaded()))\n"
        f"command.serve({NAME!r}, settings=command.ServingConfig(port=0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=registry.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"torch", "mlflow", "prefect", "pandas", "sqlalchemy", "scipy", "pyarrow"}
    assert "onnxruntime" in loaded
