"""The table of the commands: what it says of each, and how a command line is read."""

from __future__ import annotations

import inspect
import re

import pytest

from patchline.flows.commands.application import COMMANDS, Command
from patchline.flows.commands.number_lists import each_with_its_flag
from tests.flows import conftest


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_help_of_a_command_shows_no_default_that_says_nothing(
    run_here: conftest.Command, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """No command shows an empty default or a negative flag of a switch that is off by default.

    Its line in the list of commands is what its own help says.
    """
    function = command.build(["--help"]) if command.composed else command.function()
    described, _, _ = (inspect.getdoc(function) or "").partition("\n\nParameters\n")
    assert " ".join(described.split()) == command.help
    if command.words in {"sweep", "data inspect", "data preview"}:
        return  # their settings are those of `run`, which takes seconds
    monkeypatch.setenv("COLUMNS", "400")
    asked = {  # help may be asked for wherever that is
        "run": "--help run",
        "plugins show": "plugins show vit -h",
        "plugins check": "plugins --help check conv_stem",
    }
    shown = run_here.out(*asked.get(command.words, f"{command.words} --help").split())
    assert ".empty-" not in shown  # lists need no second flag
    for nothing in ("False", "()", "{}", "[]", "None", "null", ""):
        assert f"[default: {nothing}]" not in shown
    for line in shown.splitlines():
        # A switch may be turned off if it is on, or decided by the data or the machine.
        if re.search(r"--([\w-]+\.)*no-", line) and "no-label" not in line:
            assert "[default: True]" in line or "by default" in line.lower(), line
    if command.words == "plugins check":
        assert "--model.patch-embedding.norm" in shown
    if command.words == "run":  # plugins' settings included; what only runs record is left out
        for flag in ("--model.depth", "--model.patch-embedding.patch-size", "--training.epochs"):
            assert flag in shown
        assert "Side of a patch in pixels" in shown
        assert "--record" not in shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "run --data.bands 4 3 2 photos",
            "run --data.bands 4 --data.bands 3 --data.bands 2 photos",
        ),
        ("run --data.mean 0.1 0.2 0.3 7", "run --data.mean 0.1 --data.mean 0.2 --data.mean 0.3 7"),
        ("run --seed 1 2 --data.bands=4", "run --seed 1 2 --data.bands=4"),
        ("run -- --data.bands 1 2", "run -- --data.bands 1 2"),
    ],
)
def test_a_flag_is_repeated_for_each_of_its_numbers(given: str, expected: str) -> None:
    """At most three numbers that follow a flag belong to it; everything else stays as it is."""
    assert each_with_its_flag(given.split()) == expected.split()
