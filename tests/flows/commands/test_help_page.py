"""`--help` fits one screen, `--help-all` has everything, and the examples exist."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from patchline.flows.commands.application import COMMANDS, Command, commands
from patchline.flows.commands.help_page import HEADINGS
from tests.conftest import patchline_here
from tests.made.servers import Command as RunHere

_SCREEN = 45
_SETTINGS = ("run", "sweep", "data inspect", "data preview", "schedule create")


@pytest.fixture(autouse=True)
def _terminal_of_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@cache
def _whole_help(words: str) -> str:
    return patchline_here(words, "--help-all", cwd=Path()).out


def test_the_list_of_commands_is_a_screen_with_a_line_for_each(run_here: RunHere) -> None:
    """Under headings, beginning with what a person begins with."""
    lines = run_here.out("--help").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert [line[:-1] for line in lines if line.endswith(":")] == [*HEADINGS]
    first = {command.words.partition(" ")[0] for command in commands()}
    assert {line.split()[0] for line in lines if line.startswith("  ")} == first
    assert lines[lines.index("Begin:") + 1].startswith("  run ")


def test_the_version_and_an_empty_registry_are_printed(run_here: RunHere) -> None:
    """Without models there is an empty list, not an error and not a sentence."""
    assert run_here.out("--version") == "0.1.0\n"
    assert "No models are registered yet." in run_here.out("models")
    assert run_here.json("models") == {"models": []}


@pytest.mark.parametrize("words", [*_SETTINGS, "serve", "evaluate", "predict", "up"])
def test_the_help_of_a_command_fits_a_screen(run_here: RunHere, words: str) -> None:
    """It ends with two examples, and says how to see the rest if it does not show all."""
    page = run_here.out(words, "--help")
    lines = page.splitlines()
    assert len(lines) <= _SCREEN
    assert max(map(len, lines)) <= 80
    assert [line.startswith(f"  patchline {words}") for line in lines[-2:]] == [True, True]
    hidden = re.search(r"(\d+) more with --help-all", page)
    if words in _SETTINGS:
        assert hidden
        whole = _whole_help(words).splitlines()
        flags = {line.split()[0] for line in whole if line.startswith("  --")}
        shown = {line.split()[0] for line in lines if line.startswith("  --")}
        assert shown < flags
        assert len(flags - shown) == int(hidden[1])


def test_an_inspection_has_no_settings_of_the_training() -> None:
    """It trains nothing; a wrong flag is answered with the nearest one."""
    whole = _whole_help("data inspect")
    assert "--data.exclude" in whole
    assert not re.search(r"--(training|model|optimizer|augmentation|promotion)\.", whole)


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--" in "".join(each.examples)])
def test_the_flags_of_the_examples_exist(command: Command) -> None:
    """An example that names a flag of the past would be the first thing to go wrong."""
    given = {flag for each in command.examples for flag in shlex.split(each) if flag[:2] == "--"}
    behind = " vit" * (command.words == "plugins show")
    whole = _whole_help(command.words + behind)
    assert {flag for flag in given if f"  {flag}" not in whole} <= {"--json"}
