"""A plugin imports the public API alone: another import is found, with its file and its line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchline.plugin_checks import checks_of
from tests.pipeline.plugin_system.contract.faults import OF_SETTINGS, failures
from tests.pipeline.plugin_system.contract.faulty_settings import plugin_with

_MODULE = '''"""A plugin for the tests."""
from patchline.plugin_api import AugmentationPlugin, PluginConfig
{imports}

class NoSettings(PluginConfig):
    """There is nothing to set."""


plugin = AugmentationPlugin("x", "", {config}, lambda *_: None)
'''
_FOREIGN = "from patchline.pipeline.workspace import tracking\nNetwork = 1\n"
Complaint = Callable[..., str]


@pytest.fixture
def complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Complaint]:
    """Return a function that writes the package `guest` and returns what its check says."""

    def write(imports: str, config: str = "NoSettings", **modules: str) -> str:
        modules["entry"] = _MODULE.format(imports=imports, config=config)
        for name, source in {"__init__": "", "deeper/__init__": "", **modules}.items():
            file = tmp_path / f"guest/{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        plugin = importlib.import_module("guest.entry").plugin
        return failures(plugin, OF_SETTINGS).get("imports_only_the_public_api", "")

    yield write
    for name in [each for each in sys.modules if each.partition(".")[0] == "guest"]:
        del sys.modules[name]


def test_the_shared_checks_are_the_first_of_every_kind() -> None:
    """The list of these tests is the list of the code."""
    assert {check.name for check in checks_of(plugin_with())[: len(OF_SETTINGS)]} == OF_SETTINGS


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        (
            "import patchline.pipeline.workspace.tracking",
            "entry.py:3 imports patchline.pipeline.workspace.tracking.",
        ),
        (
            "import patchline.flows.progress.progress_display as p",
            "entry.py:3 imports patchline.flows.progress.progress_display.",
        ),
        (
            "def late():\n    from patchline.pipeline.errors import DataError",
            "entry.py:4 imports patchline.pipeline.errors.DataError.",
        ),
        (
            "from patchline.plugins.patch_embeddings.patch_grid import PatchGridConfig",
            "entry.py:3 imports patchline.plugins.patch_embeddings.patch_grid.PatchGridConfig.",
        ),
    ],
)
def test_a_foreign_import_is_named_with_its_line(
    complaint: Complaint, imports: str, found: str
) -> None:
    """File, line and module are named, wherever in the module the import stands."""
    assert complaint(imports).startswith(found)


@pytest.mark.parametrize(
    "imports",
    [
        "from guest.network import Network",
        "from guest import network",
        "import guest.network",
        "from . import network",
        "from guest.deeper import more",
        "def late():\n    from .deeper.more import Network",
    ],
)
def test_a_foreign_import_is_found_in_a_second_module(complaint: Complaint, imports: str) -> None:
    """The modules that a plugin imports from its own package are read too, and theirs."""
    more = {"deeper/more": "from .. import network\nNetwork = 1\n"}
    assert complaint(imports, network=_FOREIGN, **more).startswith("network.py:1 imports")


def test_a_foreign_import_is_found_around_the_plugin(complaint: Complaint) -> None:
    """Also with `PluginConfig` itself for settings, where importing the package imports it."""
    found = complaint("", "PluginConfig", __init__=_FOREIGN)
    assert found.startswith("__init__.py:1 imports patchline.pipeline.workspace.tracking.")


@pytest.mark.parametrize(
    "imports",
    [
        "import json, os.path, patchline.plugin_api",
        "from patchline import plugin_api, plugin_checks",
        "from patchline.pipeline.models import layers",
        "from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention",
        "from .network import pipeline",
    ],
)
def test_what_is_public_may_be_imported(complaint: Complaint, imports: str) -> None:
    """The API, the layers, other libraries and modules of its own are allowed."""
    assert complaint(imports, network="pipeline = 1\n") == ""
