"""The import direction, with the offending line named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.structure.import_rules import OWN, violations

ROOT = Path(__file__).resolve().parents[2]


def test_every_import_points_the_right_way() -> None:
    """Flows and plugins import the library; the library imports neither."""
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("pipeline/tracking.py", "import prefect"),
        ("pipeline/tracking.py", "from pipeline.training import loop"),
        ("pipeline/data/split.py", "from pipeline.training import loop"),
        ("pipeline/metrics/intervals.py", "from pipeline.evaluation.report import evaluate"),
        ("pipeline/evaluation/report.py", "from pipeline.registry import export"),
        ("pipeline/inference.py", "from plugins.models import vit"),
        ("flows/stages.py", "import plugins.models.vit"),
        ("plugins/models/vit.py", "from pipeline.tracking import client"),
        ("plugins/models/vit.py", "from flows import stages"),
    ],
)
def test_a_wrong_import_is_named(tmp_path: Path, file: str, line: str) -> None:
    """An import against the direction, put into a copy on purpose, is found with its place."""
    for package in OWN:
        shutil.copytree(ROOT / package, tmp_path / package)
    broken = tmp_path / file
    broken.write_text(f"{broken.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    [violation] = violations(tmp_path)
    assert violation.startswith(f"{file}:")
