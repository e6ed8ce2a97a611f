"""What `patchline` offers: each command, the function that it is, and its line in `--help`.

A command's file is imported when the command is asked for, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cyclopts import App, Parameter

from patchline.pipeline.plugin_system.tools import Tool, Tools, imported, tools

_EPILOGUE = """\
Global flags: --debug shows the traceback of an error; --plugin FILE.py loads a plugin from a file;
--workspace URI shares the workspace of the team, such as s3://bucket/team (or PATCHLINE_WORKSPACE).
"""
_HELP = ("--help", "-h")


@dataclass(frozen=True)
class Command:
    """A command, by what a user types and by the path of its function."""

    words: str
    """What is typed behind `patchline`: `run`, `schedule run-now`."""
    path: str
    """Where its function is: `module:function`, with the module in this folder unless it belongs
    to a tool."""
    help: str
    """What its function's docstring says before the parameters."""
    composed: bool = False
    """Whether the function takes the arguments and returns the command, with plugins' settings."""
    tool: Tool | None = None
    """Which tool it belongs to."""

    @property
    def import_path(self) -> str:
        """The path of the function from the root."""
        return self.path if self.tool else f"patchline.flows.commands.{self.path}"

    def arguments_in(self, arguments: list[str]) -> list[str] | None:
        """Return what stands behind the command's words, or nothing if others are meant."""
        words = self.words.split()
        plain = [argument for argument in arguments if argument not in _HELP]
        if plain[: len(words)] != words:
            return None
        return [*plain[len(words) :], *(argument for argument in arguments if argument in _HELP)]

    def build(self, arguments: list[str]) -> Callable[..., Any]:
        """Return the command that a composed one is for these arguments."""
        built: Callable[..., Any] = self.function()(arguments)
        return built

    def function(self) -> Callable[..., Any]:
        """Return the function, which imports its file."""
        return imported(self.import_path)


GROUPS = {
    "plugins": "List, inspect, check and create plugins.",
    "schedule": "Manage schedules; requires `patchline up`.",
    "data": "Dataset commands.",
    "notify": "Manage webhook notifications; requires `patchline up`.",
    "workspace": "Back up and restore the workspace of a folder.",
}
COMMANDS = (
    Command(
        "run",
        "run:build",
        "Train on a folder of images and register the model; without DATA, on built-in digits.",
        composed=True,
    ),
    Command(
        "plugins list",
        "plugins:list_plugins",
        "List the installed plugins without importing them.",
    ),
    Command(
        "plugins show",
        "plugins:build_show",
        "Show a plugin's settings, and the cost of a model or patch embedding.",
        composed=True,
    ),
    Command(
        "plugins check",
        "plugins:build_check",
        "Run the plugin's conformance checks; exits with code 1 if one fails.",
        composed=True,
    ),
    Command(
        "plugins new",
        "plugins:new_plugin",
        "Create a package with a new, working plugin: code, settings and tests.",
    ),
    Command(
        "predict",
        "predict:build",
        "Predict the classes of images with a registered model.",
        composed=True,
    ),
    Command(
        "evaluate",
        "evaluate:evaluate",
        "Evaluate a registered model on labelled images and write a report.",
    ),
    Command(
        "models",
        "promote:models",
        "List registered models with their versions, aliases and metrics.",
    ),
    Command(
        "promote",
        "promote:promote",
        "Promote a version to champion if it passes the gates; exits with code 3 if one fails.",
    ),
    Command("rollback", "promote:rollback", "Roll back to the previous champion."),
    Command(
        "clean",
        "workspace:clean",
        "List files that no version, resumed run or repeated run needs; --yes removes them.",
    ),
    Command(
        "up",
        "up:build",
        "Start a Prefect server, an MLflow server and a runner for the schedules of this folder.",
        composed=True,
    ),
    Command(
        "worker",
        "up:worker",
        "Execute scheduled runs of a work pool in this folder, until Ctrl-C.",
    ),
    Command("down", "up:down", "Stop the services once active runs finish."),
    Command(
        "schedule create",
        "schedule:build",
        "Create or update a schedule that trains, predicts, or does the work of a tool.",
        composed=True,
    ),
    Command(
        "schedule list",
        "schedule:list_schedules",
        "List the schedules and watches: what they do, when they run next, how the last run ended.",
    ),
    Command("schedule pause", "schedule:pause", "Pause a schedule; an active run continues."),
    Command(
        "schedule resume",
        "schedule:resume",
        "Resume a paused schedule; missed runs are not caught up on.",
    ),
    Command(
        "schedule remove", "schedule:remove", "Remove a schedule; its runs and models are kept."
    ),
    Command(
        "schedule run-now",
        "schedule:run_now",
        "Start a run of a schedule now, in addition to its scheduled times.",
    ),
    Command(
        "data inspect",
        "data:build_inspect",
        "Report on the data alone: counts, damage, duplicates, leakage, imbalance.",
        composed=True,
    ),
    Command(
        "data diff",
        "data:diff",
        "Show which images were added, removed, changed or relabelled from A to B.",
    ),
    Command(
        "data preview",
        "data:build_preview",
        "Draw training images before and after augmentation, as one picture.",
        composed=True,
    ),
    Command(
        "data watch",
        "data:watch",
        "Watch a folder and train when it has enough new images; stop with `schedule remove`.",
    ),
    Command(
        "approve",
        "promote:approve",
        "Approve a pending promotion.",
    ),
    Command("reject", "promote:reject", "Reject a pending promotion."),
    Command(
        "notify create",
        "notify:create",
        "Create or update a notification: events are posted as JSON to a webhook.",
    ),
    Command("notify list", "notify:list_notifications", "List the notifications."),
    Command("notify remove", "notify:remove", "Remove a notification."),
    Command(
        "workspace export",
        "workspace:export",
        "Write the workspace of this folder into one archive, for a backup or another machine.",
    ),
    Command(
        "workspace import",
        "workspace:restore",
        "Restore a workspace from an archive into an empty folder.",
    ),
)


def command_tools() -> Tools:
    """Return the installed tools whose commands are no command or group of Patchline."""
    return tools().besides({command.words.partition(" ")[0] for command in COMMANDS})


def commands() -> list[Command]:
    """Return the commands of Patchline, and those of the installed tools."""
    return [
        *COMMANDS,
        *(
            Command(each.words, each.function, each.help, each.composed, tool)
            for tool in command_tools().usable
            for each in tool.plugin.commands
        ),
    ]


def _default_worth_showing(default: object) -> str | None:
    """Return what help says of a default; nothing of a switch that is off, and of an empty list."""
    if default is None or default is False or default in ((), [], {}, "", frozenset()):
        return None
    if isinstance(default, tuple | list):
        return " ".join(str(each) for each in default)
    return str(default)


def application(arguments: list[str]) -> App:
    """Return the command line; settings of plugins are composed for what the arguments ask."""
    root = App(
        name="patchline",
        help="From a folder of labelled images to a Vision Transformer in a model registry.",
        help_epilogue=_EPILOGUE,
        version_flags=["--version"],
        version=_version,
        default_parameter=Parameter(
            negative_iterable=(),  # no --data.empty-mean
            show_default=_default_worth_showing,
        ),
    )
    groups = {"": root}
    for command in commands():
        group, _, name = command.words.rpartition(" ")
        if group not in groups:
            summary = command.tool.plugin.summary if command.tool else GROUPS[group]
            groups[group] = App(name=group, help=summary)
            root.command(groups[group])
        behind = command.arguments_in(arguments) if command.composed else None
        function = command.import_path if behind is None else command.build(behind)
        groups[group].command(function, name=name, help=command.help)
    return root


def _version() -> str:
    from importlib import metadata

    return metadata.version("patchline")
