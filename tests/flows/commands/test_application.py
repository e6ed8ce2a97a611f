"""The table of the commands: what it says of each, and how a composed one is found."""

from __future__ import annotations

import inspect
import re

import pytest
from cyclopts.command_spec import CommandSpec

from patchline.flows.command_line import run_command_line
from patchline.flows.commands.application import COMMANDS, GROUPS, Command, application


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_the_line_of_a_command_is_what_its_docstring_says(command: Command) -> None:
    """The list of commands and the command's own help cannot drift apart."""
    function = command.build(["--help"]) if command.composed else command.function()
    described, _, _ = (inspect.getdoc(function) or "").partition("\n\nParameters\n")
    assert " ".join(described.split()) == command.help


def test_every_group_has_commands() -> None:
    """A group of commands is described where, and only where, there are some."""
    assert {command.words.rpartition(" ")[0] for command in COMMANDS} == {"", *GROUPS}


def test_listing_the_commands_imports_none() -> None:
    """The application is made without the files of the commands that are not asked for."""
    listed = application(["--help"])
    for command in COMMANDS:
        group, _, name = command.words.rpartition(" ")
        found = (listed[group] if group else listed)._commands[name]
        assert isinstance(found, CommandSpec)
        assert not found.is_resolved


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--help", "run"], "--training.epochs"),
        (["-h", "plugins", "check", "conv_stem"], "--model.patch-embedding.norm"),
        (["plugins", "--help", "check", "conv_stem"], "--model.patch-embedding.norm"),
    ],
    ids=" ".join,
)
def test_help_may_be_asked_for_in_front_of_the_command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    flag: str,
) -> None:
    """Wherever `--help` stands, the settings of the plugins are shown."""
    monkeypatch.setenv("COLUMNS", "250")
    assert run_command_line(arguments) == 0
    shown = capsys.readouterr().out
    assert flag in shown
    assert "[default: 1" in shown


@pytest.mark.parametrize("words", [command.words for command in COMMANDS])
def test_help_of_a_command_shows_no_default_that_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """No command shows an empty default or a negative flag of a switch that is off by default."""
    monkeypatch.setenv("COLUMNS", "400")
    plugins = {"plugins show": ["vit"], "plugins check": ["vit"]}
    assert run_command_line([*words.split(), *plugins.get(words, []), "--help"]) == 0
    shown = capsys.readouterr().out
    assert ".empty-" not in shown  # lists need no second flag
    for nothing in ("False", "()", "{}", "[]", "None", "null", ""):
        assert f"[default: {nothing}]" not in shown
    for line in shown.splitlines():
        # A switch may be turned off if it is on, or decided by the data or the machine.
        if re.search(r"--([\w-]+\.)*no-", line) and "no-label" not in line:
            assert "[default: True]" in line or "by default" in line.lower(), line
