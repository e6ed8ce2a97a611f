"""Conformance checks of a tool: what it names is there, and looking at it costs nothing."""

from __future__ import annotations

import json
import string
import subprocess
import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path

from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.contract.checks import Check, CheckedPlugin, checks, require
from patchline.pipeline.plugin_system.tools import import_function, tools
from patchline.plugin_api import ToolPlugin

_HEAVY = {"torch", "pandas", "mlflow", "prefect", "albumentations", "sklearn", "matplotlib", "cv2"}
_LISTED = """
import json, runpy, sys
from importlib import import_module
target, sys.path[:] = sys.argv[1], json.loads(sys.argv[2])
runpy.run_path(target) if target.endswith(".py") else import_module(target.partition(":")[0])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of a tool."""
    return checks(
        subject,
        names_what_exists,
        help_is_what_the_command_says,
        schedules_a_flow,
        tells_what_its_events_carry,
        runs_services_on_a_port,
        takes_nothing_of_others,
        is_listed_at_once,
    )


def names_what_exists(subject: CheckedPlugin) -> None:
    """Every function that it names can be imported."""
    for path in _paths(subject.plugin):
        require(
            callable(import_function(path)),
            f"{path} is no function. Name one as package.module:function.",
        )


def help_is_what_the_command_says(subject: CheckedPlugin) -> None:
    """The line in `--help` is the beginning of the function's docstring."""
    for command in subject.plugin.commands:
        if command.composed:
            continue
        said = " ".join((getdoc(import_function(command.function)) or "").split("\n\n")[0].split())
        require(
            said == command.help,
            f"`patchline {command.words}` has the help '{command.help}', and {command.function} "
            f"begins with '{said}'. Make them the same.",
        )


def schedules_a_flow(subject: CheckedPlugin) -> None:
    """What a schedule repeats is a flow at the top level of the module that it names."""
    for work in subject.plugin.work:
        function = getattr(import_function(work.flow), "fn", None)
        path = function and f"{function.__module__}:{function.__qualname__}"
        require(
            path == work.flow,
            f"{work.flow} is no Prefect flow that is defined there. Decorate it with prefect.flow.",
        )
        require(work.flag.startswith("--"), f"The flag is '{work.flag}'. Begin it with two dashes.")


def tells_what_its_events_carry(subject: CheckedPlugin) -> None:
    """The sentence of an event uses keys of its payload, and names begin with `patchline.`."""
    for event in subject.plugin.events:
        keys = {key for _, key, _, _ in string.Formatter().parse(event.sentence) if key is not None}
        unknown = sorted(keys - set(event.payload))
        require(
            not unknown,
            f"The sentence of {event.name} uses {', '.join(unknown)}, which its payload lacks.",
        )
        for name in (event.name, event.resource):
            require(
                name.startswith("patchline."),
                f"{name} belongs to an event. Begin it with 'patchline.'.",
            )


def runs_services_on_a_port(subject: CheckedPlugin) -> None:
    """A service has a flag, a port and a path that answers while it is well."""
    for service in subject.plugin.services:
        flag, health, port, last = service.flag, service.health, service.port, 65535
        require(flag.startswith("--"), f"The flag is '{flag}'. Begin it with two dashes.")
        require(health.startswith("/"), f"The path is '{health}'. Begin it with a slash.")
        require(0 < port <= last, f"{port} is not a port. Choose a number from 1024 to {last}.")


def takes_nothing_of_others(subject: CheckedPlugin) -> None:
    """No other tool has one of its commands, flags, events or services."""
    here = tools()
    is_usable = any(each.plugin is subject.plugin for each in here.usable)
    require(is_usable, " ".join(here.errors) or "It is not installed. Install its package.")


def is_listed_at_once(subject: CheckedPlugin) -> None:
    """The module of the plugin imports neither torch nor pandas, MLflow, Prefect and the like."""
    targets = [
        entry.target
        for entry in plugin_loader.list_installed("tool")
        if entry.error is None and plugin_loader.load_entry(entry) is subject.plugin
    ]
    require(targets, "It is not installed, so its module is not known. Install its package.")
    words = [sys.executable, "-c", _LISTED, targets[0], json.dumps(sys.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(sys.prefix))
    require(done.returncode == 0, f"Its module cannot be imported: {done.stderr[-200:]}")
    heavy = _HEAVY & set(json.loads(done.stdout.splitlines()[-1]))
    require(
        not heavy,
        f"Its module imports {', '.join(sorted(heavy))}, and every `patchline --help` waits for "
        "that. Import them in the functions that it names.",
    )


def _paths(plugin: ToolPlugin) -> Iterator[str]:
    yield from (command.function for command in plugin.commands)
    for work in plugin.work:
        yield from (work.parameters, work.flow)
    for service in plugin.services:
        yield from (path for path in (service.program, service.check) if path)
    yield from plugin.python.values()
