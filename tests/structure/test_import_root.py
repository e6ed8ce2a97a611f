"""Everything is installed below one package, beside which a project's own `flows` works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("flows", "pipeline", "plugins")
_PROGRAM = """
import json, sys
import flows.mine, pipeline.mine, plugins.mine
import patchline
from patchline import plugin_api
from patchline.flows import command_line
from patchline.pipeline.config import RunConfig
from patchline.plugins.models import vit

assert flows.mine.NAME == "flows" and pipeline.mine.NAME == "pipeline"
print(json.dumps([patchline.__file__, plugin_api.__file__, command_line.__file__, vit.__file__]))
assert command_line.run_command_line(["plugins", "list"]) == 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds what a wheel of the checkout installs."""
    source = tmp_path_factory.mktemp("source")
    for name in (*NAMES, "patchline"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    command = (sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", "dist", ".")
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [file] = (source / "dist").glob("*.whl")
    installed = source / "installed"
    zipfile.ZipFile(file).extractall(installed)
    return installed


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project whose packages have the names of our folders."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("", encoding="utf-8")
        (tmp_path / name / "mine.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
    (tmp_path / "program.py").write_text(_PROGRAM, encoding="utf-8")
    return tmp_path


def test_a_wheel_holds_one_package(wheel: Path) -> None:
    """Its files are those of the folders, templates and skeletons included."""
    tops = {entry.name for entry in wheel.iterdir() if not entry.name.endswith(".dist-info")}
    assert tops == {"patchline"}
    assert not [path for path in wheel.rglob("*") if path.is_symlink()]
    for name in NAMES:
        there = {file.relative_to(ROOT / name) for file in _files(ROOT / name)}
        assert {
            file.relative_to(wheel / "patchline" / name)
            for file in _files(wheel / "patchline" / name)
        } == there


def _files(folder: Path) -> list[Path]:
    return [
        file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    ]


@pytest.mark.parametrize("how", ["program.py", "-m program", "-c import program", "PYTHONPATH"])
@pytest.mark.parametrize("installed", ["checkout", "wheel"])
def test_a_project_has_packages_of_the_same_names(
    project: Path, wheel: Path, installed: str, how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its modules are found, and so are ours; those of a whole run are in `finished_run`."""
    path = [str(wheel)] if installed == "wheel" else []
    arguments, cwd = how.split(maxsplit=1), project
    if how == "PYTHONPATH":
        path, arguments, cwd = (
            [str(project), *path],
            ["-m", "program"],
            tmp_path_factory.mktemp("x"),
        )
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    home = wheel if installed == "wheel" else ROOT
    for file in json.loads(done.stdout.splitlines()[0]):
        assert Path(file).is_relative_to(home / "patchline"), file
