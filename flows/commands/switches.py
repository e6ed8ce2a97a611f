"""Flags without a value, such as `--now`; the `--json` of several commands; flags of a class."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import BaseModel

from patchline.pipeline.data.config import TableColumns
from patchline.pipeline.terminal_words import visible

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig

Switch = Annotated[bool, Parameter(negative="")]
"""A flag without a `--no-` form."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.")]
"""Whether the result is printed as one JSON object."""

Answer = TypeVar("Answer")
Settings = TypeVar("Settings")
Flat = Annotated[Settings | None, Parameter(name="*")]
"""The fields of a config class as flags; None if none of them is given."""
Columns = Annotated[TableColumns | None, Parameter(name="--data")]
"""Columns of a table, where they cannot be guessed."""


def emit(content: BaseModel | Mapping[str, Any], *lines: str, as_json: bool) -> None:
    """Print what a command has to say.

    Args:
        content: the result.
        lines: the result in words; names from outside are made visible.
        as_json: whether to print the content, as one JSON object, instead of the words.
    """
    if not as_json:
        print("\n".join(map(visible, lines)))
    elif isinstance(content, BaseModel):
        print(content.model_dump_json(indent=2))
    else:
        print(json.dumps(content, indent=2))


def terminal_lines(template: str, package: str, /, **values: Any) -> list[str]:
    """Return a result in words, as a template says it.

    Args:
        template: the file's name.
        package: the package whose folder holds the file.
        values: values that the template shows, by name.
    """
    from patchline.pipeline.templates import render_lines

    return render_lines(template, package, **values).splitlines()


_ALONE = Parameter(negative=())
_TRUTH_VALUES = ("true", "false", "yes", "no", "y", "n", "on", "off", "1", "0")


def add_flags(command: Callable[..., Answer], chosen: Any) -> Callable[..., Answer]:
    """Return a command whose `settings` are the flags of a class that was composed for it.

    The class exists only there, so the annotation is not a name that could be looked up.
    """
    flags = Parameter(name="*", show=bool(chosen.model_fields))
    command.__annotations__["settings"] = Annotated[chosen | None, flags]
    return command


def dump_given_flags(settings: BaseModel | None) -> dict[str, Any]:
    """Return as JSON what the flags of a class set, without its defaults."""
    return settings.model_dump(exclude_unset=True, mode="json") if settings else {}


def data_config(data: str, columns: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a run for a command's DATA, with columns of a table."""
    from patchline.pipeline.config_files import data_settings, merge_settings, validate_config

    return validate_config(merge_settings(data_settings(data, None), {"data": dict(columns)}))


def value_of_switch(misplaced: Collection[str], arguments: Sequence[str]) -> str | None:
    """Return the remedy if a switch was given a value in an argument of its own.

    Args:
        misplaced: arguments that no flag has taken as its value.
        arguments: all of the command line.

    Returns:
        None if none of them stands behind a flag and looks like a switch's value.
    """
    for switch, value in itertools.pairwise(arguments):
        given = value in misplaced and value.lower() in _TRUTH_VALUES
        if given and switch.startswith("--") and "=" not in switch:
            return f"{switch} takes its value after an equals sign. Write {switch}={value}."
    return None


def without_needless_negatives(section: type[BaseModel]) -> type[BaseModel]:
    """Return a section whose switches have a `--no-` form only if they are on by default, or auto.

    A switch that is off, and on in a file, is turned off by `--model.download=false`.
    """
    for field in section.model_fields.values():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            without_needless_negatives(kind)
        elif kind is bool and field.default is False and _ALONE not in field.metadata:
            field.metadata.append(_ALONE)
    return section


without_needless_negatives(TableColumns)
_FLAGS = {"--data.bands", "--data.mean", "--data.std"}
_MOST = 3


def each_with_its_flag(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the flag repeated before each of its numbers, as cyclopts takes them.

    A number that does not directly follow belongs to something else.
    """
    return list(_repeat_flags(arguments))


def _repeat_flags(arguments: Sequence[str]) -> Iterator[str]:
    flag, left = "", 0
    for place, argument in enumerate(arguments):
        if argument == "--":
            yield from arguments[place:]
            return
        if argument in _FLAGS:
            flag, left = argument, _MOST
        elif not left or not _is_number(argument):
            flag, left = "", 0
        else:
            if left < _MOST:
                yield flag
            left -= 1
        yield argument


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
