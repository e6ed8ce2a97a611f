"""What tests with a browser share."""

from __future__ import annotations

from importlib import resources

import pytest


@pytest.fixture
def axe() -> str:
    """Return the source of axe, which finds what keeps people out."""
    package = pytest.importorskip("axe_core_python")
    return resources.files(package).joinpath("axe.min.js").read_text(encoding="utf-8")
