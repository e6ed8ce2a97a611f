"""A written plugin package is tidy, installs, and works in the way of its kind."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from ruff import find_ruff_bin  # type: ignore[import-untyped]  # it has no types

from patchline import plugin_checks
from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import KINDS, Kind
from patchline.pipeline.plugin_system.plugin_skeleton import WrittenPackage, write_package
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugin_api import DataTraits
from tests.pipeline.plugin_system.contract.faults import SLOW

ROOT = Path(__file__).resolve().parents[3]
TRAITS = DataTraits(channels=3, height=24, width=24, num_classes=5, mirror_symmetric=True)
Packages = dict[str, WrittenPackage]


_BUILD = """
import os, sys
from setuptools import build_meta
into, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    sys.argv[1:] = []
    build_meta.build_wheel(into)
"""


def _run(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Return one written package of each kind."""
    folder = tmp_path_factory.mktemp("written")
    return {kind: write_package(kind, f"new_{kind}", folder) for kind in KINDS}


@pytest.fixture(scope="module")
def site(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of the packages, unpacked as an installer does it.

    The build backend that a `pyproject.toml` names builds all of them in one process.
    """
    folder, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    for written in packages.values():
        build = tomllib.loads((written.folder / "pyproject.toml").read_text("utf-8"))
        assert build["build-system"]["build-backend"] == "setuptools.build_meta"
    _run("-c", _BUILD, wheels, *(written.folder for written in packages.values()), cwd=folder)
    for wheel in wheels.iterdir():
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def laid_out(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages and their metadata, without a build."""
    folder = tmp_path_factory.mktemp("laid_out")
    for written in packages.values():
        project = tomllib.loads((written.folder / "pyproject.toml").read_text("utf-8"))["project"]
        [(group, entry)] = project["entry-points"].items()
        [(name, target)] = entry.items()
        package = folder / f"patchline_{written.name}"
        shutil.copytree(written.folder / package.name, package)
        for file, text in {
            "METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n",
            "entry_points.txt": f"[{group}]\n{name} = {target}\n",
        }.items():
            write_text(package.with_name(f"{package.name}-1.dist-info") / file, text)
    return folder


@pytest.fixture
def loaded(laid_out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that loads the installed plugin of a kind, as Patchline does."""
    monkeypatch.syspath_prepend(laid_out)
    return lambda kind: plugin_loader.load(kind, f"new_{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_those_that_are_named(kind: Kind, packages: Packages) -> None:
    """The answer lists every file of the package and no other; Python can read each."""
    written = packages[kind]
    found = {
        file.relative_to(written.folder).as_posix()
        for file in written.folder.rglob("*")
        if file.is_file() and "egg-info" not in str(file) and "build/" not in str(file)
    }
    assert found == set(written.files)
    assert {"pyproject.toml", "README.md", "tests/test_contract.py"} < found
    for name in found:
        text = (written.folder / name).read_text("utf-8")
        assert "$" not in text, name
        if name.endswith(".py"):
            assert ast.get_docstring(ast.parse(text)), name


@pytest.mark.parametrize("letters", [1, 39])
def test_the_files_are_tidy(letters: int, tmp_path: Path) -> None:
    """The linter and the formatter find nothing, however long the name is."""
    options = ["--no-cache", "--config", str(ROOT / "pyproject.toml"), "."]
    for number, kind in enumerate(KINDS):
        folder = write_package(kind, "rstuvwxy"[number] * letters, tmp_path).folder
        for command in (["check"], ["format", "--check"]):
            subprocess.run([find_ruff_bin(), *command, *options], cwd=folder, check=True)


@pytest.mark.slow
def test_the_types_are_right(packages: Packages, tmp_path: Path) -> None:
    """Strict mypy finds nothing in the plugins and their tests.

    All side by side, as most of the time goes into what they import; the linters may have read it.
    """
    for written in packages.values():
        package = written.folder / f"patchline_{written.name}"
        shutil.copytree(package, tmp_path / package.name)
        shutil.copytree(written.folder / "tests", tmp_path / f"tests_of_{written.name}")
    options = ("--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache")
    folders = sorted(each.name for each in tmp_path.iterdir())
    _run("-m", "mypy", *options, *folders, cwd=tmp_path, MYPYPATH=str(ROOT))


@pytest.mark.slow  # builds and installs a plugin of each kind
def test_their_own_tests_pass(packages: Packages, site: Path, loaded: Any) -> None:
    """The tests of each package pass, contract and all, where the packages are installed.

    The checks of seconds are those of a model with one block; the tutorial's are run elsewhere.
    """
    checks = plugin_checks.checks_of(loaded("model"), {"depth": 1})
    results = [check.result() for check in checks if check.name in SLOW]
    assert [result.status for result in results] == ["passed"] * len(SLOW)
    arguments = ["-q", "--import-mode=importlib", "-k", f"not ({' or '.join(SLOW)})"]
    arguments += [str(written.folder / "tests") for written in packages.values()]
    program = f"import sys, pytest; sys.path.insert(0, {str(site)!r})\n"
    program += f"sys.exit(pytest.main({arguments!r}))"
    output = _run("-c", program, cwd=site, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "passed" in output
    assert "skipped" not in output


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_point_is_the_plugin(kind: Kind, laid_out: Path, loaded: Any) -> None:
    """Once installed, the package has one entry point, in the group of its kind."""
    name = f"patchline-new-{kind.replace('_', '-')}"
    [distribution] = metadata.distributions(name=name, path=[str(laid_out)])
    [point] = distribution.entry_points
    assert (point.group, point.name) == (f"patchline.{kind}s", f"new_{kind}")
    assert point.value == f"patchline_new_{kind}.plugin:plugin"
    plugin = loaded(kind)
    entry = plugin_loader.find(kind, f"new_{kind}")
    assert (entry.distribution, entry.error) == (name, None)
    assert entry.summary == plugin.summary
    assert plugin.config_class() == plugin.config_class().resolved_for(TRAITS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "Use lower-case letters") for name in ("My-Stem", "2d", "a__b", "größe", "../x")),
        ("x" * 41, "has 41 characters; at most 40"),
        ("class", "is reserved by Python"),
        ("auto", "is reserved by Patchline"),
        ("conv", "patch_embedding plugin 'conv' already exists"),
    ],
)
def test_a_wrong_name_is_refused(name: str, words: str, tmp_path: Path) -> None:
    """The error says what a name may be; nothing is written."""
    with pytest.raises(ConfigError, match=words):
        write_package("patch_embedding", name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_package_name_that_is_installed_is_refused(tmp_path: Path, loaded: Any) -> None:
    """A second package of a name would replace the first, whatever kind it is of."""
    assert loaded("model")
    with pytest.raises(ConfigError, match=r"patchline-new-model .*model plugin 'new_model'"):
        write_package("augmentation", "new_model", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses a file, the error names the place and nothing stays behind."""
    write, count = Path.write_text, iter(range(10))

    def refusing(self: Path, text: str, encoding: str) -> int:
        if next(count) == 3:
            raise OSError(errno.ENOSPC, "refused")
        return write(self, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", refusing)
    with pytest.raises(StorageError, match=r"patchline-mine cannot be written \(refused\)"):
        write_package("model", "mine", tmp_path)
    assert next(count) == 4
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A file or a dead link of the same name stays as it is."""
    (tmp_path / "patchline-first").write_text("mine", "utf-8")
    (tmp_path / "patchline-second").symlink_to("nowhere")
    for name in ("first", "second"):
        with pytest.raises(ConfigError, match=f"patchline-{name} already exists"):
            write_package("augmentation", name, tmp_path)
    assert (tmp_path / "patchline-first").read_text("utf-8") == "mine"
    assert len(list(tmp_path.iterdir())) == 2
