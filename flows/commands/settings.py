"""The command `patchline settings`."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Iterator
from textwrap import wrap
from typing import Annotated

import docstring_parser
from cyclopts import Parameter

from patchline.flows.commands.application import application, commands
from patchline.flows.commands.help_page import shorten
from patchline.flows.commands.switches import Json, emit
from patchline.pipeline.config import RunConfig
from patchline.pipeline.plugin_system.known_settings import (
    Setting,
    join_same,
    search_settings,
    settings_of_plugins,
    settings_of_runs,
    words_of_none,
)
from patchline.pipeline.terminal_words import visible

_MOST = 12
"""Settings that a search prints, unless all are asked for."""
_WIDTH = 80
_UNKNOWN = "No setting has to do with {!r}. Check the spelling."
_NOTHING = "No setting has to do with these words. Ask for one of them, or for a more common one."
_EVERYWHERE = ("--json", "--help", "-h", "--help-all")


def settings(
    *words: str,
    everything: Annotated[bool, Parameter(name="--all", negative="")] = False,
    as_json: Json = False,
) -> None:
    """Find settings and flags by words: of runs, plugins and commands.

    Parameters
    ----------
    words
        What the setting has to do with, such as learning rate, or imbalance.
    everything
        Print all that were found, instead of the nearest.
    """
    runs = [*settings_of_runs()]
    of_plugins, errors = settings_of_plugins()
    known = {(setting.name, setting.help) for setting in runs}
    flags = [each for each in _flags_of_commands() if (each.name, each.help) not in known]
    kinds = {
        "settings of runs": runs,
        "of plugins": of_plugins,
        "flags of commands": join_same(flags),
    }
    near = [setting for settings in kinds.values() for setting in settings]
    total = f"{len(near)}: {', '.join(f'{len(each)} {kind}' for kind, each in kinds.items())}."
    if words:
        errors += [_UNKNOWN.format(word) for word in words_of_none(near, words)]
        near = search_settings(near, words)
        total = f"{len(near)} settings have to do with this." if near else _NOTHING
    shown = near if everything or not words else near[:_MOST]
    if len(shown) < len(near):
        total += f" The nearest {_MOST} are shown; --all prints the others."
    emit(
        {"settings": [each.model_dump(mode="json") for each in near]},
        *(line for each in shown for line in _lines(each, whole=bool(words))),
        total,
        as_json=as_json,
    )
    for error in errors:
        print(visible(error), file=sys.stderr)


def _flags_of_commands() -> Iterator[Setting]:
    """Yield the flags of all commands that are no settings of a run."""
    plain = application([])
    for command in commands():
        app = plain
        if command.composed:  # its flags depend on the arguments
            app = application([*command.words.split(), *shlex.split(command.examples[0])])
        for word in command.words.split():
            app = app[word]
        documented = docstring_parser.parse(inspect.getdoc(app.default_command) or "")
        helps = {each.arg_name: each.description for each in documented.params}
        for argument in app.assemble_argument_collection(parse_docstring=False):
            name, field = argument.name, argument.field_info
            key = name.removeprefix("--").replace("-", "_")
            is_flag = name.startswith("--") and name not in _EVERYWHERE and not argument.children
            if not is_flag or not argument.show or _is_of_a_run(key):
                continue
            said = argument.parameter.help or helps.get(field.name) or ""
            yield Setting.of(key, field.default, said, command=command.words)


def _is_of_a_run(key: str) -> bool:
    """Return whether a command's flag is a run's setting, or a range of one that is searched."""
    first = key.partition(".")[0]
    return "." in key and (first in RunConfig.model_fields or key.startswith("sweep.space."))


def _lines(setting: Setting, *, whole: bool) -> Iterator[str]:
    facts = [f"default {setting.default}"] if setting.default else []
    facts += [f"of {', '.join(setting.plugins)}"] if setting.plugins else []
    if setting.commands != ("run",):
        facts.append(", ".join(f"`patchline {each}`" for each in setting.commands))
    facts += [setting.docs] if setting.docs and whole else []
    yield f"{setting.flag}" + (f"  ({', '.join(facts)})" if facts else "")
    indent = "    "
    if whole:
        yield from wrap(setting.help, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    else:
        yield f"{indent}{shorten(setting.help, _WIDTH - len(indent))}"
