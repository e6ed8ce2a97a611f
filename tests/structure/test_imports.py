"""The import direction, with the offending line named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.structure.import_rules import (
    PACKAGES,
    folders_without_rules,
    import_cycles,
    tools_named,
    violations,
)

ROOT = Path(__file__).resolve().parents[2]


def test_every_import_points_the_right_way() -> None:
    """Flows and plugins import the library; the library imports neither."""
    assert violations(ROOT) == []


def test_nothing_but_a_tool_names_its_modules(tmp_path: Path) -> None:
    """A tool is found by its entry point: no text outside its folder leads to a module of it."""
    assert tools_named(ROOT) == []
    for file, text in (
        ("plugins/tools/export/tool.py", ""),
        ("flows/other.py", 'MODULE = "patchline.plugins.tools.export.comparison"'),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    assert tools_named(tmp_path) == ["flows/other.py:1 names the tool export"]


def test_the_rules_themselves_have_no_cycle() -> None:
    """No package may import one that may import it, directly or indirectly."""
    assert import_cycles() == []


def test_the_page_on_the_architecture_shows_the_direction() -> None:
    """Its list has the twelve rooms, each above all rooms that it may import."""
    page = (ROOT / "docs/reference/architecture.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"```text\n(stages\n.*?)```", page, flags=re.DOTALL)
    rooms = [line.split(", ") for line in lines.splitlines()]
    height = {room: -line for line, rooms_of_it in enumerate(rooms) for room in rooms_of_it}
    folders = {init.parent.name for init in (ROOT / "pipeline").glob("*/__init__.py")}
    assert height.keys() == folders
    assert len(folders) <= 12
    wrong = {
        (package, other)
        for package, others in PACKAGES.items()
        for other in others - {"data.labels", "evaluation.metrics"}
        if height[other.partition(".")[0]] > height[package.partition(".")[0]]
    }
    of_all = {"plugin_system.contract", "registry.browsing"}
    assert {package for package, _ in wrong} == of_all, wrong


def test_every_room_has_a_rule() -> None:
    """A package that is divided into rooms says of each of them which others it may import."""
    assert folders_without_rules(ROOT) == []


def test_few_modules_are_directly_in_the_library() -> None:
    """Only modules that are public or about the whole run are outside its packages."""
    loose = [file.name for file in (ROOT / "pipeline").glob("*.py") if file.stem != "__init__"]
    assert len(loose) <= 14, loose


def test_every_package_says_what_it_is_for() -> None:
    """The `__init__` of each package is its description in one sentence, and no code."""
    for init in sorted((ROOT / "pipeline").rglob("__init__.py")):
        [statement] = ast.parse(init.read_text(encoding="utf-8")).body
        assert isinstance(statement, ast.Expr), init
        text = ast.literal_eval(statement.value)
        assert text.endswith("."), init
        assert "\n" not in text, init


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("pipeline/workspace/tracking/tracked_run.py", "import prefect"),
        (
            "pipeline/workspace/tracking/tracked_run.py",
            "from patchline.pipeline.training import loop",
        ),
        ("pipeline/data/splits/split.py", "from patchline.pipeline.training import loop"),
        ("pipeline/data/splits/split.py", "from patchline.pipeline.data.store import store_shards"),
        ("pipeline/data/reading/decoding.py", "from patchline.pipeline.data import ingestion"),
        (
            "pipeline/data/pixel_values/tiff_values.py",
            "import patchline.pipeline.data.reading.resizing",
        ),
        (
            "pipeline/evaluation/metrics/intervals.py",
            "from patchline.pipeline.evaluation.report import evaluate",
        ),
        (
            "pipeline/workspace/files/file_locks.py",
            "from patchline.pipeline.workers import event_log",
        ),
        (
            "pipeline/plugin_system/plugin_loader.py",
            "from patchline.pipeline.plugin_system.contract import checks",
        ),
        ("pipeline/evaluation/report.py", "from patchline.pipeline.registry import export"),
        ("pipeline/models/inference.py", "from patchline.plugins.models import vit"),
        ("flows/training/stage_tasks.py", "import patchline.plugins.models.vit"),
        ("flows/training/stage_tasks.py", "import patchline"),
        ("flows/training/stage_tasks.py", "from patchline import python_api"),
        ("flows/training/stage_tasks.py", "from pipeline import config"),
        ("pipeline/models/inference.py", "import patchline.python_api"),
        (
            "flows/schedules/deployments.py",
            "from patchline.flows.training import run_messages",
        ),
        ("plugins/models/vit.py", "from patchline import plugin_checks"),
        ("plugins/models/vit.py", "from patchline.pipeline.workspace.tracking import client"),
        ("plugins/models/vit.py", "from patchline.flows import prefect_session"),
        (
            "plugins/tools/export/comparison.py",
            "from patchline.flows.training import training_flow",
        ),
        (
            "plugins/tools/export/comparison.py",
            "from patchline.plugins.tools.monitor import shifts",
        ),
        ("plugins/tools/export/comparison.py", "from patchline.plugins.models import vit"),
        ("plugins/models/vit.py", "from patchline.plugins.tools.monitor import shifts"),
        ("pipeline/models/inference.py", "from patchline.plugins.tools.monitor import shifts"),
    ],
)
def test_a_wrong_import_is_named(tmp_path: Path, file: str, line: str) -> None:
    """An import against the direction, put into a copy on purpose, is found with its place."""
    broken = tmp_path / file
    broken.parent.mkdir(parents=True)
    text = (ROOT / file).read_text(encoding="utf-8")
    broken.write_text(f"{text}\n{line}\n", encoding="utf-8")
    [violation] = violations(tmp_path)
    assert violation.startswith(f"{file}:")
