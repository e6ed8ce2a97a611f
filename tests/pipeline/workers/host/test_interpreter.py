"""How Python was started, which every process inherits by a variable."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import patchline


def test_python_without_docstrings_is_named(tmp_path: Path) -> None:
    """A run would fail late, in MLflow."""
    done = patchline("plugins", "list", cwd=tmp_path, env={"PYTHONOPTIMIZE": "2"})
    assert done.code == 2, done.err
    assert "Unset PYTHONOPTIMIZE" in done.err
