"""Plugins are found without being imported, and each failure is one plugin's alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import (
    FILES_VARIABLE,
    Kind,
    find,
    list_installed,
    load,
)
from patchline.plugin_api import API_VERSION
from tests.patience import patient

GOOD_MODULE = '''"""A plugin for the tests.

More about it.
"""

from patchline.plugin_api import AugmentationPlugin, PluginConfig


class NoSettings(PluginConfig):
    """There is nothing to set."""


def build(config, context):
    """Build nothing."""


plugin = AugmentationPlugin(
    summary="A plugin for the tests", paper="", config_class=NoSettings, build=build
)
'''


@pytest.fixture(autouse=True)
def _no_plugin_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the plugin files of a test when it ends."""


def test_listing_imports_no_plugin_and_no_heavy_library() -> None:
    """After a listing no plugin, torch, albumentations, pandas or scikit-learn is imported."""
    program = (
        "import json, sys\n"
        "from patchline.pipeline.plugin_system.plugin_loader import list_installed\n"
        "names = [entry.name for entry in list_installed()]\n"
        "print(json.dumps([names, sorted(sys.modules)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(120),
    )
    names, modules = json.loads(done.stdout)
    assert "vit" in names
    heavy = {"torch", "albumentations", "cv2", "pandas", "numpy", "sklearn", "mlflow", "prefect"}
    assert heavy.isdisjoint(modules)
    assert [name for name in modules if name.startswith("plugins.") and name.count(".") > 1] == []


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [("model", "vitt", "vit"), ("data_source", "image-folder", "image_folder")],
)
def test_unknown_name_is_answered_with_the_nearest(kind: Kind, name: str, meant: str) -> None:
    """A name that nobody has is answered with the nearest and all that are installed."""
    with pytest.raises(PluginError) as raised:
        load(kind, name)
    sentence = str(raised.value)
    assert sentence.startswith(f"There is no {kind} plugin '{name}'. Did you mean '{meant}'?")
    for entry in list_installed(kind):
        assert entry.name in sentence.partition("Installed:")[2]


def test_single_file_reaches_the_processes_that_are_started(tmp_path: Path) -> None:
    """A process that is started from here uses the same plugin files, wherever it runs."""
    (tmp_path / "far").mkdir()
    Path("relative_light.py").write_text(GOOD_MODULE)
    plugin_loader.use_plugin_files([Path("relative_light.py")])
    program = (
        "from patchline.pipeline.plugin_system.plugin_loader import load\n"
        "load('augmentation', 'relative_light')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "far", capture_output=True, text=True,
        check=False, timeout=patient(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("a.py", "import no_such_library\n", "cannot be imported: ModuleNotFoundError"),
        ("b.py", "def plugin(:\n", "cannot be imported: SyntaxError"),
        ("c.py", "x = 1\n", "has no plugin. Assign a ModelPlugin"),
        ("e.txt", GOOD_MODULE, "is not a Python file"),
        (
            "f.py",
            GOOD_MODULE.replace('paper=""', f'paper="", api_version={API_VERSION + 1}'),
            f"was written for plugin API {API_VERSION + 1}; this Patchline has {API_VERSION}",
        ),
    ],
)
def test_wrong_plugin_file_is_explained(tmp_path: Path, name: str, source: str, words: str) -> None:
    """A file that is no plugin is named with the reason."""
    file = tmp_path / name
    file.write_text(source)
    with pytest.raises(PluginError) as raised:
        plugin_loader.use_plugin_files([file])
    assert f"Plugin file {file}" in str(raised.value)
    assert words in str(raised.value)
    assert str(file) not in os.environ[FILES_VARIABLE]


def test_file_with_the_name_of_an_installed_plugin_is_a_conflict(tmp_path: Path) -> None:
    """A single file cannot silently replace an installed plugin."""
    file = tmp_path / "light.py"
    file.write_text(GOOD_MODULE)
    plugin_loader.use_plugin_files([file])
    with pytest.raises(PluginError, match=r"taken by light\.py and patchline"):
        load("augmentation", "light")


def test_a_checkout_has_the_plugins_of_its_project_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An update of a checkout brings its plugins without being installed again."""
    before = list_installed()
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "patchline"\nversion = "9"\n[project.entry-points."patchline.models"]\n'
        'new = "patchline.plugins.models.vit:plugin"\n',
        encoding="utf-8",
    )
    monkeypatch.setattr(plugin_loader, "checkout", lambda: tmp_path)
    plugin_loader._entry_points.cache_clear()
    try:
        assert [(each.name, each.version) for each in list_installed("model")] == [("new", "9")]
        monkeypatch.setattr(plugin_loader, "checkout", lambda: None)  # as from a wheel
        plugin_loader._entry_points.cache_clear()
        assert {each.name for each in before} >= {each.name for each in list_installed("model")}
        assert find("model", "vit").distribution == "patchline"
    finally:
        plugin_loader._entry_points.cache_clear()
