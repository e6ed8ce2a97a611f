"""The installed tools: what they add to the command line, schedules, events and `up`.

Each is the value of its `tool.py`, which imports nothing heavy; its functions are named by strings,
and imported when they are called. A tool that cannot be used hurts nobody who did not ask for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import PluginEntry
from patchline.plugin_api import ToolEvent, ToolPlugin, ToolService, ToolWork

_OWN = "patchline"


@dataclass(frozen=True)
class Tool:
    """An installed tool."""

    name: str
    distribution: str
    plugin: ToolPlugin

    def load(self, path: str) -> Callable[..., Any]:
        """Import what the tool names as `package.module:function`.

        Raises:
            PluginError: if it cannot be imported, or is not there.
        """
        try:
            return import_function(path)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"The tool '{self.name}' of {self.distribution} names {path}, which cannot be "
                f"imported: {type(error).__name__}: {error}. Repair or uninstall "
                f"{self.distribution}."
            ) from error

    def claims(self) -> Iterator[str]:
        """Yield what nothing else may be called: first words of commands, flags, events, logs."""
        yield from {command.words.partition(" ")[0] for command in self.plugin.commands}
        for work in self.plugin.work:
            yield work.flag
        for event in self.plugin.events:
            yield event.name
            if event.flag:
                yield event.flag
        for service in self.plugin.services:
            yield from (f"{service.name}.log", service.flag, f"{service.flag}-port")


@dataclass(frozen=True)
class Tools:
    """The tools that can be used, and a sentence for each that cannot."""

    usable: tuple[Tool, ...]
    errors: tuple[str, ...]

    def besides(self, taken: Collection[str]) -> Tools:
        """Return those that claim nothing of this, which the core has."""
        owners, here = dict.fromkeys(taken, "Patchline"), Tools((), self.errors)
        for tool in self.usable:
            here = here.with_tool(tool, owners)
        return here

    def with_tool(self, tool: Tool, owners: dict[str, str]) -> Tools:
        """Return the tools with another one, unless what it claims has an owner."""
        for claim in tool.claims():
            if claim in owners:
                error = (
                    f"The tool '{tool.name}' of {tool.distribution} cannot be used: '{claim}' "
                    f"belongs to {owners[claim]}. Uninstall {tool.distribution}, or rename it."
                )
                return replace(self, errors=(*self.errors, error))
        owners.update(dict.fromkeys(tool.claims(), f"the tool '{tool.name}'"))
        return replace(self, usable=(*self.usable, tool))

    def work(self) -> Iterator[tuple[Tool, ToolWork]]:
        """Yield what schedules may repeat, with the tool."""
        for tool in self.usable:
            for work in tool.plugin.work:
                yield tool, work

    def events(self) -> Iterator[ToolEvent]:
        """Yield the events of all tools."""
        for tool in self.usable:
            yield from tool.plugin.events

    def services(self) -> Iterator[tuple[Tool, ToolService]]:
        """Yield what `patchline up` may run, with the tool."""
        for tool in self.usable:
            for service in tool.plugin.services:
                yield tool, service


def tools() -> Tools:
    """Return the installed tools: the built-in ones first, then by name."""
    here, owners = Tools((), ()), dict[str, str]()
    entries = plugin_loader.list_installed("tool")
    for entry in sorted(entries, key=lambda each: (each.distribution != _OWN, each.name)):
        try:
            here = here.with_tool(_tool(entry), owners)
        except PluginError as error:
            here = replace(here, errors=(*here.errors, str(error)))
    return here


def _tool(entry: PluginEntry) -> Tool:
    if entry.error is not None:
        raise PluginError(
            f"The tool '{entry.name}' of {entry.distribution} cannot be used: {entry.error}. "
            f"Repair or uninstall {entry.distribution}."
        )
    plugin = cast("ToolPlugin", plugin_loader.load_entry(entry))
    return Tool(entry.name, entry.distribution, plugin)


def import_function(path: str) -> Callable[..., Any]:
    """Return what is at `package.module:function`."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def tool_function(name: str) -> Callable[..., Any]:
    """Import the function by which a tool serves the Python API.

    Raises:
        PluginError: if no installed tool has one of that name.
    """
    here = tools()
    for tool in here.usable:
        if name in tool.plugin.python:
            return tool.load(tool.plugin.python[name])
    reasons = " ".join(here.errors) or "Install the package that has it."
    raise PluginError(f"No installed tool has `patchline.{name}`. {reasons}")


def keep_former_paths() -> None:
    """Let the paths by which earlier schedules name the flows of tools lead to where they are."""
    for _, work in tools().work():
        for path in work.formerly:
            module, _, name = path.partition(":")
            sys.modules[module] = _FormerModule(module, {name: work.flow})


class _FormerModule(ModuleType):
    """A module of which one function is left, at another place."""

    def __init__(self, name: str, paths: dict[str, str]) -> None:
        super().__init__(name)
        self._paths = paths

    def __getattr__(self, name: str) -> Any:
        if name not in self._paths:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return import_function(self._paths[name])
