"""How Python was started, which every process inherits by a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import patchline


@pytest.mark.parametrize(("level", "code"), [("1", 0), ("2", 2)])
def test_python_without_docstrings_is_named(level: str, code: int, tmp_path: Path) -> None:
    """A run would fail late, in MLflow; without assertions alone everything works."""
    done = patchline("plugins", "list", cwd=tmp_path, env={"PYTHONOPTIMIZE": level})
    assert done.code == code, done.err
    assert ("Unset PYTHONOPTIMIZE" in done.err) == bool(code)
