"""Everything is installed below one package, beside which a project's own `flows` works."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import FOLDERS as NAMES
from tests.environments import ROOT, install_wheel

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


def own_files() -> tuple[object, str]:
    """Return what Patchline finds of its own files, below paths that are no matter, and its commit.

    Its source is executed in a process of the wheel, too.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from patchline.pipeline.plugin_system import plugin_loader
    from patchline.pipeline.workspace.run_memory import stage_keys
    from patchline.pipeline.workspace.tracking import provenance
    from patchline.plugins.tools.export.container_form import ServedVersion, write_container

    with TemporaryDirectory() as made:
        artifacts, out = Path(made, "artifacts"), Path(made, "out")
        artifacts.mkdir()
        out.mkdir()
        write_container(ServedVersion("a", "1"), artifacts, out)
        served = sorted(file.relative_to(out).as_posix() for file in out.rglob("*.*"))
    keys = stage_keys.code(
        "patchline.pipeline.training.__main__", "patchline.pipeline.models.layers"
    )
    plugins = sorted(f"{each.kind} {each.name}" for each in plugin_loader.list_installed())
    return [served, keys, plugins], provenance.commit()[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds what a wheel of the checkout installs.

    It is a virtual environment in somebody else's repository, as many are.
    """
    theirs = tmp_path_factory.mktemp("theirs")
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "Theirs")):
        subprocess.run(("git", *who, *command), cwd=theirs, check=True)
    install_wheel(theirs / "venv", tmp_path_factory.mktemp("source"))
    return theirs / "venv"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project whose packages have the names of our folders."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("", "utf-8")
        (tmp_path / name / "mine.py").write_text(f"NAME = {name!r}\n", "utf-8")
    (tmp_path / "program.py").write_text(_PROGRAM, "utf-8")
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


def _output(arguments: list[str], cwd: Path, path: Path) -> str:
    """Return what Python prints in a folder, with another one on its path."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


@pytest.mark.parametrize("installed", ["checkout", "wheel"])
def test_a_project_has_packages_of_the_same_names(
    project: Path, wheel: Path, installed: str
) -> None:
    """Its modules are found, and so are ours; those of a whole run are in `finished_run`.

    It is on the path beside a checkout, and the working directory beside a wheel.
    """
    is_wheel = installed == "wheel"
    cwd, path = (project, wheel) if is_wheel else (wheel.parent, project)
    home = wheel if is_wheel else ROOT
    for file in json.loads(_output(["-m", "program"], cwd, path)):
        assert Path(file).is_relative_to(home / "patchline"), file


def test_a_wheel_finds_its_own_files(wheel: Path) -> None:
    """Files of a container, stage keys and plugins are the checkout's; the commit is not known."""
    program = f"import json\n{inspect.getsource(own_files)}\nprint(json.dumps(own_files()))"
    found, commit = json.loads(_output(["-c", program], wheel.parent, wheel))
    assert found == json.loads(json.dumps(own_files()[0]))
    assert "app/patchline/pipeline/registry/serving/__main__.py" in found[0]
    assert commit == ""
