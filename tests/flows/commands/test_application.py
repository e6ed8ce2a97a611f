"""The table of the commands: what it says of each, and how a command line is read."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from cyclopts import App
from pydantic import BaseModel, create_model

from patchline.flows.commands.application import commands
from patchline.flows.commands.switches import add_flags, dump_given_flags, each_with_its_flag
from tests.made.servers import Command


def test_a_line_of_the_list_of_commands_is_what_the_help_says() -> None:
    """Of each command but those whose flags are composed, which takes seconds."""
    for command in (each for each in commands() if not each.composed):
        text = inspect.getdoc(command.function()) or ""
        described, _, _ = text.partition("\n\nParameters\n")
        assert " ".join(described.split()) == command.help


@pytest.mark.parametrize("asked", ["--help-all run", "plugins --help check conv_stem"])
def test_help_has_the_settings_of_plugins_and_no_default_that_says_nothing(
    run_here: Command, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Help may be asked for wherever that is; what only runs record is left out."""
    monkeypatch.setenv("COLUMNS", "400")
    shown = run_here.out(asked)
    assert ".empty-" not in shown  # lists need no second flag
    for nothing in ("False", "()", "{}", "[]", "None", "null", ""):
        assert f"[default: {nothing}]" not in shown
    assert "--record" not in shown
    if "check" in asked:
        assert "--model.patch-embedding.norm" in shown
    else:
        for flag in ("--model.depth", "--model.patch-embedding.patch-size", "--training.epochs"):
            assert flag in shown
        assert "Side of a patch in pixels" in shown


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


def test_the_fields_of_a_class_are_flags() -> None:
    """Of the flags, only those that are given are the settings; without one there are none."""

    def command(*, settings: Any = None) -> dict[str, Any]:
        return dump_given_flags(settings)

    chosen: type[BaseModel] = create_model("Chosen", epochs=(int, 3), name=(str, "a"))
    app = App(result_action="return_value")
    app.default(add_flags(command, chosen))
    assert app(["--epochs", "5"]) == {"epochs": 5}
    assert app([]) == {}
