"""What plugin authors may rely on, and what the project looks like from outside."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import patchline
from patchline import plugin_api
from patchline.python_api import find_tool_function

ROOT = Path(__file__).resolve().parents[2]


def test_the_plugin_api_exports_exactly_these_names() -> None:
    """A name that appears or vanishes here changes the contract with plugin authors."""
    assert sorted(plugin_api.__all__) == [
        "ANSWER_COLUMNS",
        "ANSWER_GROUP",
        "ANSWER_SOURCE",
        "API_VERSION",
        "ARCHIVE_SUFFIXES",
        "Address",
        "Assumptions",
        "AugmentationContext",
        "AugmentationPlugin",
        "BatchRandom",
        "BatchTransform",
        "ConfigError",
        "ConflictError",
        "Content",
        "DataError",
        "DataSource",
        "DataSourcePlugin",
        "DataTraits",
        "DrawnTransform",
        "Encoder",
        "FolderStore",
        "FoundFile",
        "IMAGE_SUFFIXES",
        "IgnoredFiles",
        "ImageListing",
        "ImageSpec",
        "Launcher",
        "LauncherContext",
        "LauncherPlugin",
        "LeftOutFile",
        "ListedImage",
        "LocalLauncher",
        "MULTI_LABEL",
        "ModelContext",
        "ModelPlugin",
        "NO_PATCH_EMBEDDING",
        "ObjectInfo",
        "ObjectState",
        "ObjectStore",
        "Objective",
        "ObjectiveContext",
        "ObjectivePlugin",
        "PatchEmbeddingContext",
        "PatchEmbeddingPlugin",
        "PatchTokens",
        "PipelineError",
        "PixelValues",
        "PluginConfig",
        "PluginError",
        "ReadingRules",
        "Resources",
        "RunningWorker",
        "SINGLE_LABEL",
        "SetCells",
        "SourceContext",
        "Split",
        "StorageError",
        "StoreContext",
        "StorePlugin",
        "TABLE_SUFFIXES",
        "ToolCommand",
        "ToolEvent",
        "ToolPlugin",
        "ToolService",
        "ToolWork",
        "ValueRange",
        "WorkRequest",
        "WorkerError",
        "WorkerTask",
        "answer_groups",
        "answer_rules",
        "answer_sources",
        "are_answers",
        "check_branches",
        "check_expansion",
        "coco_files",
        "innermost_paths",
        "is_several",
        "known_digest",
        "made_once",
        "metadata_files",
        "open_archive",
        "plain_cell",
        "read_label_cells",
        "read_set_cells",
        "readable_archive",
        "sample_key",
        "shard_index",
        "shards_in",
        "split_named",
        "stem_of",
        "table_parts",
        "unclear_level",
        "valid_name",
        "visible_folders",
        "walk_files",
    ]
    for name in plugin_api.__all__:
        assert hasattr(plugin_api, name)


def test_the_python_api_exports_exactly_these_names() -> None:
    """A name that appears or vanishes here changes the contract with programs and notebooks."""
    assert sorted(patchline.__all__) == [
        "ConfigError",
        "DataError",
        "DataReport",
        "Decision",
        "Evaluation",
        "Explanation",
        "MetricEstimate",
        "Model",
        "ModelReferenceError",
        "PipelineError",
        "PluginError",
        "Rehearsal",
        "Report",
        "Run",
        "RunError",
        "Settings",
        "UserError",
        "evaluate",
        "explain",
        "inspect_data",
        "load",
        "models",
        "promote",
        "rehearse",
        "run",
    ]
    for name in patchline.__all__:
        assert hasattr(patchline, name)
    assert not hasattr(patchline, "trian")


def test_a_tool_adds_its_functions_to_the_python_api() -> None:
    """They are found by their name in the registry of tools; other names are no attributes."""
    function: Any = find_tool_function("explain")
    assert function.__name__ == "explain_images"
    assert find_tool_function("trian") is None
    assert getattr(patchline, "trian", None) is None


def test_the_top_level_holds_what_the_readme_says() -> None:
    """Nothing but the agreed names stands at the top, dotfiles and build products aside."""
    agreed = {
        "patchline", "pipeline", "flows", "plugins", "tests", "docs", "examples", "benchmarks",
        "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "LICENSE",
    }  # fmt: skip
    made = {"patchline.egg-info", "build", "dist", "mlflow.db", "mlflow.db.lock", "mlruns"}
    present = {entry.name for entry in ROOT.iterdir() if not entry.name.startswith(".")}
    assert present - made == agreed


def test_package_inits_are_empty_of_work() -> None:
    """An `__init__` holds a docstring and nothing else."""
    for package in ("pipeline", "flows", "plugins"):
        for init in (ROOT / package).rglob("__init__.py"):
            body = ast.parse(init.read_text("utf-8")).body
            assert [type(node) for node in body] == [ast.Expr], init
