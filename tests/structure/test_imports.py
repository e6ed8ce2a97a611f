"""The import direction, with the offending line named, and no circles of files."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.structure.import_rules import (
    FOLDERS,
    PACKAGES,
    ROOT_PACKAGE,
    folders_without_rules,
    import_cycles,
    tools_named,
    violations,
)
from tests.structure.source_files import source_file

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
        (tmp_path / file).write_text(text, "utf-8")
    assert tools_named(tmp_path) == ["flows/other.py:1 names the tool export"]


def test_the_rules_themselves_have_no_cycle() -> None:
    """No package may import one that may import it, directly or indirectly."""
    assert import_cycles() == []


def test_the_page_on_the_architecture_shows_the_direction() -> None:
    """Its list has the twelve rooms, each above all rooms that it may import."""
    page = (ROOT / "docs/reference/architecture.md").read_text("utf-8")
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
        [statement] = ast.parse(init.read_text("utf-8")).body
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
    text = (ROOT / file).read_text("utf-8")
    broken.write_text(f"{text}\n{line}\n", "utf-8")
    [violation] = violations(tmp_path)
    assert violation.startswith(f"{file}:")


def import_circle(root: Path, *packages: str) -> list[str]:
    """Return files that import each other in a circle, one way round; none: no file does.

    Imports in functions and below `if TYPE_CHECKING` count: they hide a circle from Python, and
    not from a reader.
    """
    sources = [file for package in packages for file in sorted((root / package).rglob("*.py"))]
    files = {_module(file.relative_to(root)): file for file in sources}
    imports = {
        module: {
            name
            for each in source_file(file.read_text("utf-8")).imports
            for name in [name for name in (str(each), each.module) if name in files][:1]
        }
        - {module}
        for module, file in files.items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def _module(file: Path) -> str:
    parts = (*([ROOT_PACKAGE] if file.parts[0] in FOLDERS else []), *file.with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def test_no_files_of_the_product_are_in_a_circle() -> None:
    """A reader can read each file before those that use it."""
    assert import_circle(ROOT, "pipeline", "flows", "plugins", "patchline") == []


def test_a_circle_of_three_files_is_found(tmp_path: Path) -> None:
    """Whatever form an import has, and also if a function or `TYPE_CHECKING` hides it."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "first.py").write_text("from library import second\n", "utf-8")
    (library / "second.py").write_text("import library.third\n", "utf-8")
    third = library / "third.py"
    third.write_text("", "utf-8")
    assert import_circle(tmp_path, "library") == []
    for hidden in ("def late():", "if TYPE_CHECKING:"):
        third.write_text(f"{hidden}\n    from library.first import name\n", "utf-8")
        circle = import_circle(tmp_path, "library")
        assert set(circle) == {"library.first", "library.second", "library.third"}
