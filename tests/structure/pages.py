"""README and docs as what they show: commands, examples, listings."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

from tests.conftest import patchline_here

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PLAIN = re.compile(r"patchline [^|&;<>()$]*")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return [text for name, text in _FENCE.findall(page.read_text("utf-8")) if name == language]


def commands(page: Path) -> list[str]:
    """Return the commands behind `$ ` in the page's console blocks."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def execute(command: str, folder: Path, entered: dict[str, str] | None = None) -> None:
    """Run a command in a folder, in this environment or an entered one; it has to succeed.

    One of Patchline's own runs in this process, unless it needs a shell.
    """
    if entered is None and _PLAIN.fullmatch(command):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            here = patchline_here(*shlex.split(command)[1:], cwd=folder)
        assert here.code == 0, f"{command}\n{here.out}\n{here.err}"
        assert not [each for each in warned if each.category is UserWarning], f"{command}: {warned}"
        return
    programs = Path(sys.executable).parent
    outside = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=entered or outside,
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "UserWarning" not in done.stderr, f"{command}\n{done.stderr}"
