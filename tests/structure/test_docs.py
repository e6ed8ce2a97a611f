"""What README and docs show is executed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import draw_photo, write_photos

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LISTING = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return [text for name, text in _FENCE.findall(page.read_text("utf-8")) if name == language]


def commands(page: Path) -> list[str]:
    """Return the commands behind `$ ` in the page's console blocks."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `flowers`, `examples` and the settings file that the docs show."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("garden")
    write_photos(folder / "drawn", images=12)
    for drawn, flower in (("across", "daisy"), ("down", "rose"), ("rising", "tulip")):
        shutil.copytree(folder / "drawn" / drawn, folder / "flowers" / flower)
    Image.fromarray(draw_photo(0, 99)).save(folder / "photo.png")
    shutil.copytree(ROOT / "examples", folder / "examples")
    [settings] = blocks(ROOT / "docs/settings.md", "yaml")
    (folder / "run.yaml").write_text(settings, encoding="utf-8")
    return folder


def _execute(command: list[str] | str, folder: Path) -> None:
    programs = Path(sys.executable).parent
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_works(page: Path, garden: Path) -> None:
    """Each command of a page, in order, ends with exit code 0."""
    for command in commands(page):
        _execute(command, garden)


def test_the_python_example_works(garden: Path) -> None:
    """The example in docs/packages.md answers from the registered model."""
    if not (garden / "mlflow.db").exists():
        _execute("patchline run flowers --training.epochs 1", garden)
    for example in blocks(ROOT / "docs/packages.md", "python"):
        _execute([sys.executable, "-c", example], garden)


def test_a_command_that_fails_is_noticed(garden: Path) -> None:
    """The same check fails on a command that does not work."""
    with pytest.raises(AssertionError, match="no/such"):
        _execute("patchline run no/such", garden)


def test_there_are_commands_to_execute() -> None:
    """The pages show commands at all."""
    assert len([command for page in PAGES for command in commands(page)]) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_listings_are_the_real_files_and_links_lead_somewhere(page: Path) -> None:
    """A listing equals the file that it names; a relative link has a target."""
    text = page.read_text("utf-8")
    for name, listing in _LISTING.findall(text):
        assert listing == (ROOT / name).read_text("utf-8")
    for target in _LINK.findall(text):
        assert (page.parent / target).exists(), target
